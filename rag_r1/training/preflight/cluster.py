"""Checks the machines: batch sizes, engines, and a retriever that all nodes can reach.

Without these checks most of this shows only after a whole rollout, or never: veRL asserts that an update
divides by the data-parallel size when it makes the update (engine_workers.py, `train_mini_batch`), and if
searches fail on all nodes but one, the trajectories there are masked.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import math
from urllib.parse import urlsplit

from omegaconf import DictConfig, OmegaConf

from rag_r1.options.problems import Problem, error, is_unset, warning
from rag_r1.options.server_address import is_server_address
from rag_r1.system import gpu_driver
from rag_r1.system.installation import flash_attn_command
from rag_r1.training.preflight.adapters import check_adapters
from rag_r1.training.preflight.sessions import verls_mode

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"


def check_batch_sizes(config: DictConfig) -> list[Problem]:
    """Every update and micro-batch divides over the data-parallel GPUs, and the longest row fits on one."""
    problems = _check_replicas(config)
    roles = [(_ACTOR, "fsdp_config")]
    if needs_critic(config):
        roles.append(("critic", "fsdp"))
    for role, fsdp in roles:
        node = OmegaConf.select(config, role)
        together = _model_parallel(config, node, fsdp)
        if together is None:
            continue
        if gpu_count(config) % together:
            text = f"{gpu_count(config)} GPUs cannot be divided into groups of {together} that hold one model"
            remedy = "make the product of its tensor, pipeline, context and sequence sizes divide the GPUs"
            problems.append(error(role, text, remedy))
            continue
        size = gpu_count(config) // together
        problems += _check_update(config, role, node, size)
        problems += _check_micro_batches(config, role, node, fsdp, size)
    return problems


def gpu_count(config: DictConfig) -> int:
    """GPUs that train."""
    return int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node)


def _model_parallel(config: DictConfig, node: DictConfig, fsdp: str) -> int | None:
    """GPUs that together process one part of a batch; None for an engine that is not known here."""
    if node.strategy == "megatron":
        if node.megatron.get("dynamic_context_parallel"):
            return gpu_count(config)
        names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        return math.prod(int(node.megatron.get(name) or 1) for name in names)
    if node.strategy in ("fsdp", "fsdp2"):
        return _sequence_parallel(node, fsdp)
    return None


def _sequence_parallel(node: DictConfig, fsdp: str) -> int:
    name = "ulysses_sequence_parallel_size"
    engine = node.get(fsdp) or {}
    return max(int(node.get(name) or 1), int(engine.get(name) or 1))


def _check_replicas(config: DictConfig) -> list[Problem]:
    rollout = OmegaConf.select(config, _ROLLOUT)
    names = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
    each = math.prod(int(rollout.get(name) or 1) for name in names)
    if gpu_count(config) % each == 0:
        return []
    text = f"{gpu_count(config)} GPUs cannot be divided into replicas of {each}"
    return [error(f"{_ROLLOUT}.tensor_model_parallel_size", text, "set it to a divisor of the GPUs")]


def _check_update(config: DictConfig, role: str, node: DictConfig, size: int) -> list[Problem]:
    n, prompts = int(config.actor_rollout_ref.rollout.n), int(node.ppo_mini_batch_size)
    if prompts * n % size == 0:
        return []
    step = size // math.gcd(size, n)
    text = (
        f"an update of {prompts} x {n} = {prompts * n} trajectories cannot be shared by {size} data-parallel"
        f" ranks ({gpu_count(config)} GPUs)"
    )
    lower, upper = prompts // step * step, -(-prompts // step) * step
    near = f"{lower} or {upper}" if lower else f"{upper}"
    return [error(f"{role}.ppo_mini_batch_size", text, f"set it to a multiple of {step}, e.g. {near}")]


def _check_micro_batches(
    config: DictConfig, role: str, node: DictConfig, fsdp: str, size: int
) -> list[Problem]:
    rollout, ref = config.actor_rollout_ref.rollout, config.actor_rollout_ref.ref
    row = config.data.max_prompt_length + config.data.max_response_length
    rows = int(node.ppo_mini_batch_size) * int(rollout.n)
    ranks = _sequence_parallel(node, fsdp)
    # Rows of a rank in a forward pass: veRL pads a batch to a multiple of both.
    passed = math.lcm(size, rows) // size
    forwards = [(f"{role}.ppo", node, "ppo_micro_batch_size_per_gpu", rows // size)]
    if role == _ACTOR:
        forwards.append((f"{_ROLLOUT}.log_prob", rollout, "log_prob_micro_batch_size_per_gpu", passed))
        if needs_reference(config):
            where = "actor_rollout_ref.ref.log_prob"
            forwards.append((where, ref, "log_prob_micro_batch_size_per_gpu", passed))
    problems = []
    for where, owner, name, share in forwards:
        prefix = name.partition("micro")[0]
        key = where.rpartition(".")[0]
        dynamic = owner.get("use_dynamic_bsz" if prefix == "ppo_" else "log_prob_use_dynamic_bsz")
        if dynamic:
            limit = owner.get(f"{prefix}max_token_len_per_gpu")
            if limit is not None and limit * ranks < row:
                text = f"{limit} tokens are fewer than the longest row has, {row}"
                problems.append(
                    error(f"{key}.{prefix}max_token_len_per_gpu", text, f"set it to at least {row}")
                )
        elif rows % size == 0 and (micro := owner.get(name)) and share % micro:
            text = f"{micro} does not divide the {share} rows of a rank"
            remedy = f"set it to a divisor of {share}, or actor_rollout_ref.actor.use_dynamic_bsz=true"
            problems.append(error(f"{key}.{name}", text, remedy))
    return problems


def check_engines(config: DictConfig) -> list[Problem]:
    """The engines for generation and training work with the agent loop, and their packages are installed."""
    problems, rollout = [], OmegaConf.select(config, _ROLLOUT)
    if rollout.name != "vllm":
        text = (
            f"{rollout.name} does not work here: a turn must end with its stop string, which vLLM keeps if"
            " include_stop_str_in_output is set. SGLang and TensorRT-LLM refuse that parameter, so every"
            " generation would fail and be masked; and veRL starts SGLang without a tokenizer, so that it"
            " cannot find stop strings"
        )
        problems.append(error(f"{_ROLLOUT}.name", text, "set it to vllm"))
    strategy = OmegaConf.select(config, f"{_ACTOR}.strategy")
    if strategy == "megatron" and importlib.util.find_spec("megatron") is None:
        text = "megatron is chosen, but megatron-core is not installed"
        remedy = "install veRL's extra `mcore` on all nodes, or train with platform=gpu"
        problems.append(error(f"{_ACTOR}.strategy", text, remedy))
    elif strategy not in ("fsdp", "fsdp2", "megatron"):
        text = f"there is no recipe for {strategy}: its keys, divisibility and memory were not checked"
        problems.append(warning(f"{_ACTOR}.strategy", text, "use fsdp, fsdp2 or megatron"))
    problems += check_adapters(config) + _check_attention(config)
    backend = OmegaConf.select(config, f"{_ROLLOUT}.checkpoint_engine.backend")
    apart = verls_mode(config.trainer.v1.trainer_mode) == "separate_async"
    if apart and backend in ("nccl", "nixl", "delta") and importlib.util.find_spec("cupy") is None:
        text = f"{backend} transfers weights with cupy, which is not installed"
        remedy = "pip install cupy-cuda13x==14.0.1 (the extra gpu has it), on all nodes"
        problems.append(error(f"{_ROLLOUT}.checkpoint_engine.backend", text, remedy))
    return problems


def _check_attention(config: DictConfig) -> list[Problem]:
    """On a machine with a GPU: flash-attn is there if the actor or the critic computes attention with it, as
    they do by default (verl/workers/config/model.py, `HFModelConfig`). A login node without a GPU may lack
    it."""
    fsdp = str(config.actor_rollout_ref.actor.strategy).startswith("fsdp")
    if config.trainer.device != "cuda" or not fsdp or importlib.util.find_spec("flash_attn") is not None:
        return []
    if gpu_driver.driver_version() is None:
        return []
    parts = ["actor_rollout_ref", *(["critic"] if needs_critic(config) else [])]
    keys = [f"{part}.model.override_config.attn_implementation" for part in parts]
    wanted = {key: OmegaConf.select(config, key) or "flash_attention_2" for key in keys}
    text = "flash-attn is not installed"
    remedy = f"train with platform=gpu_sdpa (PyTorch's attention), or install it: {flash_attn_command()}"
    return [error(key, text, remedy) for key, name in wanted.items() if name == "flash_attention_2"]


def check_reachability(config: DictConfig) -> list[Problem]:
    """With several nodes, the retrieval server's address is not a loopback address."""
    nodes = int(config.trainer.nnodes)
    if verls_mode(config.trainer.v1.trainer_mode) == "separate_async":
        nodes += int(config.actor_rollout_ref.rollout.get("nnodes") or 0)
    problems = []
    for key in ("rag_r1.retriever.url", "rag_r1.validation_retriever.url"):
        url = None if is_unset(config, key) else OmegaConf.select(config, key)
        if nodes > 1 and is_server_address(url) and is_loopback(url):
            text = f"on each node {url} is that node itself, and agent loops run on all {nodes}"
            remedy = (
                "give an address that every node reaches (rag-r1 index serve --host 0.0.0.0) or, with a"
                " server on every node, a host name that each node resolves to itself"
            )
            problems.append(error(key, text, remedy))
    return problems


def is_loopback(url: str) -> bool:
    """Whether an address means the local machine: localhost, 127.0.0.0/8, ::1, 0.0.0.0, ::."""
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


def needs_critic(config: DictConfig) -> bool:
    """Whether a critic is trained."""
    enabled = config.critic.enable
    return bool(enabled) if enabled is not None else config.algorithm.adv_estimator == "gae"


def needs_reference(config: DictConfig) -> bool:
    """Whether a KL term needs the reference policy."""
    return bool(config.algorithm.get("use_kl_in_reward") or config.actor_rollout_ref.actor.use_kl_loss)
