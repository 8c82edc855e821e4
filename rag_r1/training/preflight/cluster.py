"""Checks that the configuration fits the machines: batch sizes, engines and the retriever's address.

Without these checks most faults would show only after a whole rollout, or never. veRL asserts that an update
divides by the data-parallel size only when it makes the update (engine_workers.py, `train_mini_batch`). And
if searches fail on all nodes except one, the trajectories of the other nodes are masked.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import math
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

from omegaconf import DictConfig, OmegaConf

from rag_r1.options.problems import Problem, error, is_unset, warning
from rag_r1.options.server_address import is_server_address
from rag_r1.system import gpu_driver
from rag_r1.system.cores import multiplies_bf16
from rag_r1.system.installation import flash_attn_command
from rag_r1.training.config_facts import (
    adapter_rank,
    gpu_count,
    is_nf4,
    is_separate,
    needs_critic,
    needs_reference,
)
from rag_r1.training.preflight.adapters import check_adapters

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_REFERENCE = "actor_rollout_ref.ref"
#: The attention of rag_r1/plugin/cpu/packed_attention.py.
_PACKED_SDPA = "packed_sdpa"
#: Keys whose product is the number of GPUs of a vLLM replica, and of a model in Megatron.
_REPLICA_SIZES = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
_MEGATRON_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def check_batch_sizes(config: DictConfig) -> Iterator[Problem]:
    """Check that every update and micro-batch can be divided among the data-parallel GPUs, and that a
    micro-batch can hold the longest row."""
    yield from _check_verls_assertions(config)
    gpus = gpu_count(config)
    replica = _product(config.actor_rollout_ref.rollout, _REPLICA_SIZES)
    if gpus % replica:
        text = f"{gpus} GPUs cannot be divided into replicas of {replica}"
        yield error(f"{_ROLLOUT}.tensor_model_parallel_size", text, "set it to a divisor of the GPUs")
    roles = [(_ACTOR, "fsdp_config"), *([("critic", "fsdp")] if needs_critic(config) else [])]
    for role, fsdp_key in roles:
        node = OmegaConf.select(config, role)
        group = _model_parallel(config, node, fsdp_key)
        if group is None:
            continue
        if gpus % group:
            text = f"{gpus} GPUs cannot be divided into groups of {group} that hold one model"
            remedy = "make the product of its tensor, pipeline, context and sequence sizes divide the GPUs"
            yield error(role, text, remedy)
            continue
        yield from _check_update(config, role, node, gpus // group)
        yield from _check_micro_batches(config, role, node, fsdp_key, gpus // group)


def _check_verls_assertions(config: DictConfig) -> Iterator[Problem]:
    """Check what veRL asserts once its processes have started (engine_workers.py, `init_model`;
    trainer_separate_async.py, `PPOTrainerSeparateAsync`)."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    if bool(actor.use_dynamic_bsz) != bool(rollout.log_prob_use_dynamic_bsz):
        text = f"must equal {_ACTOR}.use_dynamic_bsz, which is {str(actor.use_dynamic_bsz).lower()}"
        yield error(f"{_ROLLOUT}.log_prob_use_dynamic_bsz", text, "set both to the same value")
    if is_separate(config):
        key, updates = "trainer.v1.separate_async.parameter_sync_step", config.trainer.v1.separate_async
        steps, prompts = int(updates.parameter_sync_step), int(actor.ppo_mini_batch_size)
        if steps * prompts != int(config.data.train_batch_size):
            text = f"{steps} x ppo_mini_batch_size={prompts} must be data.train_batch_size"
            remedy = f"set data.train_batch_size={steps * prompts}, or change the other two"
            yield error(key, text, remedy)


def _product(node: DictConfig, names: Iterable[str]) -> int:
    """Return the product of these keys of a block, in which an unset one counts as 1."""
    return math.prod(int(node.get(name) or 1) for name in names)


def _model_parallel(config: DictConfig, node: DictConfig, fsdp_key: str) -> int | None:
    """Return the number of GPUs that together process a part of a batch; None for an unknown engine.
    `node` is the block of a role, and `fsdp_key` the key in it with the settings of FSDP."""
    if node.strategy == "megatron":
        dynamic = node.megatron.get("dynamic_context_parallel")
        return gpu_count(config) if dynamic else _product(node.megatron, _MEGATRON_SIZES)
    return _sequence_parallel(node, fsdp_key) if node.strategy in ("fsdp", "fsdp2") else None


def _sequence_parallel(node: DictConfig, fsdp_key: str) -> int:
    """Return the number of GPUs that share the tokens of a row, by which veRL multiplies the limit of a
    micro-batch (workers/engine/utils.py, `prepare_micro_batches`)."""
    if node.strategy == "megatron":
        return int(node.megatron.get("context_parallel_size") or 1)
    name = "ulysses_sequence_parallel_size"
    size = int(node.get(name) or 1)  # the role's; above 1 it replaces the engine's
    return size if size > 1 else int((node.get(fsdp_key) or {}).get(name) or 1)


def _check_update(config: DictConfig, role: str, node: DictConfig, ranks: int) -> Iterator[Problem]:
    """Check that an update can be divided among the data-parallel ranks."""
    n, prompts = int(config.actor_rollout_ref.rollout.n), int(node.ppo_mini_batch_size)
    if prompts * n % ranks == 0:
        return
    step = ranks // math.gcd(ranks, n)
    text = (
        f"an update of {prompts} x {n} = {prompts * n} trajectories cannot be shared by {ranks} data-parallel"
        f" ranks ({gpu_count(config)} GPUs)"
    )
    lower, upper = prompts // step * step, math.ceil(prompts / step) * step
    nearest = f"{lower} or {upper}" if lower else f"{upper}"
    yield error(f"{role}.ppo_mini_batch_size", text, f"set it to a multiple of {step}, e.g. {nearest}")


def _check_micro_batches(
    config: DictConfig, role: str, node: DictConfig, fsdp_key: str, ranks: int
) -> Iterator[Problem]:
    """Check that micro-batches that are limited by tokens can hold the longest row, and that those that are
    limited by rows divide the rows of a data-parallel rank."""
    rollout = config.actor_rollout_ref.rollout
    row_tokens = config.data.max_prompt_length + config.data.max_response_length
    update_rows = int(node.ppo_mini_batch_size) * int(rollout.n)
    # Rows of a rank in a forward pass: veRL pads a batch to a multiple of the ranks and of an update's rows.
    padded_rows = math.lcm(ranks, update_rows) // ranks
    # Each forward pass: the key and the block with its settings, their prefix, and the rows of a rank.
    forwards = [(role, node, "ppo_", update_rows // ranks)]
    if role == _ACTOR:
        forwards.append((_ROLLOUT, rollout, "log_prob_", padded_rows))
        if needs_reference(config) and not adapter_rank(config):  # else the reference is the actor
            forwards.append((_REFERENCE, config.actor_rollout_ref.ref, "log_prob_", padded_rows))
    for section, options, prefix, rank_rows in forwards:
        if options.get("use_dynamic_bsz" if prefix == "ppo_" else "log_prob_use_dynamic_bsz"):
            limit = options.get(f"{prefix}max_token_len_per_gpu")
            if limit is not None and limit * _sequence_parallel(node, fsdp_key) < row_tokens:
                text = f"{limit} tokens are fewer than the longest row has, {row_tokens}"
                remedy = f"set it to at least {row_tokens}"
                yield error(f"{section}.{prefix}max_token_len_per_gpu", text, remedy)
        elif update_rows % ranks == 0:
            micro_rows = options.get(f"{prefix}micro_batch_size_per_gpu")
            if micro_rows and rank_rows % micro_rows:
                text = f"{micro_rows} does not divide the {rank_rows} rows of a rank"
                remedy = f"set it to a divisor of {rank_rows}, or {_ACTOR}.use_dynamic_bsz=true"
                yield error(f"{section}.{prefix}micro_batch_size_per_gpu", text, remedy)


def check_engines(config: DictConfig) -> Iterator[Problem]:
    """Check that the engines for generation and training work with the agent loop, and that their packages
    are installed."""
    rollout = config.actor_rollout_ref.rollout
    strategy = config.actor_rollout_ref.actor.strategy
    if rollout.name != "vllm":
        text = (
            f"{rollout.name} does not work here: a turn must end with its stop string, which vLLM keeps if"
            " include_stop_str_in_output is set. SGLang and TensorRT-LLM refuse that parameter, so every"
            " generation would fail and be masked; and veRL starts SGLang without a tokenizer, so that it"
            " cannot find stop strings"
        )
        yield error(f"{_ROLLOUT}.name", text, "set it to vllm")
    if rollout.get("full_determinism") and config.trainer.device == "cpu":
        text = "vLLM's kernels for it need Triton, so on a CPU every generation would fail"
        yield error(f"{_ROLLOUT}.full_determinism", text, "set it to false")
    if strategy == "megatron" and importlib.util.find_spec("megatron") is None:
        text = "megatron is chosen, but megatron-core is not installed"
        remedy = "install veRL's extra `mcore` on all nodes, or train with platform=gpu"
        yield error(f"{_ACTOR}.strategy", text, remedy)
    elif strategy not in ("fsdp", "fsdp2", "megatron"):
        text = f"there is no recipe for {strategy}: its keys, divisibility and memory were not checked"
        yield warning(f"{_ACTOR}.strategy", text, "use fsdp, fsdp2 or megatron")
    yield from check_adapters(config)
    yield from _check_offload(config)
    yield from _check_attention(config)
    yield from check_cpu_rows(config, "actor_rollout_ref.model", f"{_ACTOR}.fsdp_config")
    if needs_critic(config):
        yield from check_cpu_rows(config, "critic.model", "critic.fsdp")
    backend = rollout.checkpoint_engine.backend
    needs_cupy = is_separate(config) and backend in ("nccl", "nixl", "delta")
    if needs_cupy and importlib.util.find_spec("cupy") is None:
        text = f"{backend} transfers weights with cupy, which is not installed"
        remedy = "pip install cupy-cuda13x==14.0.1 (the extra gpu has it), on all nodes"
        yield error(f"{_ROLLOUT}.checkpoint_engine.backend", text, remedy)


def _check_offload(config: DictConfig) -> Iterator[Problem]:
    """Check that FSDP1 frees the memory of weights that are moved to the host.

    With one GPU it does not shard. After its modules were given whole weights, for vLLM or with bf16 also for
    a step, they keep them on the GPU, unless the parameters are the model's own.
    """
    actor = config.actor_rollout_ref.actor
    if actor.strategy != "fsdp" or is_nf4(config) or gpu_count(config) > 1:
        return
    if actor.fsdp_config.param_offload and not actor.fsdp_config.get("use_orig_params"):
        text = "frees no memory while vLLM generates: with one GPU, FSDP1's modules keep the weights"
        remedy = f"set {_ACTOR}.fsdp_config.use_orig_params=true"
        yield warning(f"{_ACTOR}.fsdp_config.param_offload", text, remedy)


def _check_attention(config: DictConfig) -> Iterator[Problem]:
    """Check that flash-attn is installed if the actor or the critic uses it, as they do by default
    (verl/workers/config/model.py, `HFModelConfig`). It may be missing on a login node without a GPU."""
    uses_fsdp = str(config.actor_rollout_ref.actor.strategy).startswith("fsdp")
    if config.trainer.device != "cuda" or not uses_fsdp or importlib.util.find_spec("flash_attn") is not None:
        return
    if gpu_driver.driver_version() is None:
        return
    remedy = f"train with platform=gpu_sdpa (PyTorch's attention), or install it: {flash_attn_command()}"
    for role in ["actor_rollout_ref", *(["critic"] if needs_critic(config) else [])]:
        key = f"{role}.model.override_config.attn_implementation"
        if (OmegaConf.select(config, key) or "flash_attention_2") == "flash_attention_2":
            yield error(key, "flash-attn is not installed", remedy)


def check_cpu_rows(config: DictConfig, model: str, engine: str) -> Iterator[Problem]:
    """Check that rows are packed where a model has the attention for packed rows, on a CPU, and warn of bf16
    on a CPU that is slow with it. `model` and `engine` are the sections of a model and of its FSDP engine."""
    is_cpu, key = config.trainer.device == "cpu", f"{model}.override_config.attn_implementation"
    if OmegaConf.select(config, key) == _PACKED_SDPA:
        if config.trainer.device == "cuda":
            yield error(key, f"{_PACKED_SDPA} is only there on a CPU", "set it to sdpa or flash_attention_2")
        elif is_cpu and not OmegaConf.select(config, f"{model}.use_remove_padding"):
            remedy = f"set it to true, or {key}=sdpa"
            yield error(f"{model}.use_remove_padding", f"{_PACKED_SDPA} takes no padded rows", remedy)
    dtype = f"{engine}.mixed_precision.param_dtype"
    if is_cpu and OmegaConf.select(config, dtype) in ("bf16", "bfloat16") and multiplies_bf16() is False:
        text = "this CPU has no instructions for bf16, with which it takes several times as long as with fp32"
        yield warning(dtype, text, "set it to fp32 (platform=cpu_packed)")


def check_reachability(config: DictConfig) -> Iterator[Problem]:
    """Check that the retrieval server's address is not a loopback address if there are several nodes."""
    training = int(config.trainer.nnodes)
    generating = int(config.actor_rollout_ref.rollout.get("nnodes") or 0) if is_separate(config) else 0
    nodes = training + generating
    # With one node for training and one for generation, both may be the same machine.
    problem = error if max(training, generating) > 1 else warning
    for key in ("rag_r1.retriever.url", "rag_r1.validation_retriever.url"):
        url = None if is_unset(config, key) else OmegaConf.select(config, key)
        if nodes > 1 and is_server_address(url) and is_loopback(url):
            text = f"on each node {url} is that node itself, and agent loops run on all, up to {nodes}"
            remedy = (
                "give an address that every node reaches (rag-r1 index serve --host 0.0.0.0) or, with a"
                " server on every node, a host name that each node resolves to itself"
            )
            yield problem(key, text, remedy)


def is_loopback(url: str) -> bool:
    """Return whether an address means the local machine: localhost, 127.0.0.0/8, ::1, 0.0.0.0, ::."""
    try:
        host = (urlsplit(url if "//" in url else f"//{url}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
