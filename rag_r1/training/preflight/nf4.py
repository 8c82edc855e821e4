"""Checks a training of adapters over weights in nf4 (rag_r1/plugin/nf4), where many faults are silent.

vLLM must generate with the same weights with which the actor computes: the dequantised weights, which are
sent once, and the adapters. If vLLM reads the model's own weights instead (`load_format=safetensors`), veRL
never sends the dequantised ones, and the two policies differ. A checkpoint must contain only the adapters,
since veRL would otherwise save packed numbers of 4 bits under the names of weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rag_r1.inference.model_folders.model_config import model_config
from rag_r1.options.problems import Problem, error, is_unset
from rag_r1.system.installation import pip_command
from rag_r1.training.config_facts import NF4_ENGINE, SAVE_CONTENTS, adapter_rank, is_nf4, saved_contents
from rag_r1.training.preflight.memory.shape import EXPERT_KEYS

_MODEL = "actor_rollout_ref.model"
_ACTOR = "actor_rollout_ref.actor"
_FSDP = f"{_ACTOR}.fsdp_config"
_ROLLOUT = "actor_rollout_ref.rollout"
#: veRL's names of 16-bit floats with five bits of exponent.
_HALF = ("16", "fp16", "float16")
#: Switches that must be off -> the reason.
_OFF = {
    f"{_FSDP}.offload_policy": "moves sharded weights, and those in nf4 are whole: use param_offload",
    f"{_FSDP}.qat.enable": "trains for other formats of 4 bits",
    f"{_MODEL}.enable_activation_offload": "needs weights wrapped by FSDP",
    f"{_MODEL}.use_liger": "replaces layers that are in nf4",
    f"{_ROLLOUT}.layered_summon": "is for weights that vLLM reads itself",
    f"{_ROLLOUT}.quantization": "lets vLLM quantise again, by slices of its own",
}


def check_nf4(config: DictConfig) -> Iterator[Problem]:
    """Check that a training over weights in nf4 trains, sends and saves the right weights."""
    if not is_nf4(config):
        return
    yield from _check_installation()
    yield from _check_engine(config)
    yield from _check_generation(config)
    yield from _check_checkpoint(config)
    yield from _check_model(config)


def _check_installation() -> Iterator[Problem]:
    """Check that bitsandbytes is installed."""
    if find_spec("bitsandbytes") is None:
        text = f"{NF4_ENGINE} needs bitsandbytes, which is not installed"
        yield error(f"{_MODEL}.external_lib", text, f"on all nodes: {pip_command('nf4')}")


def _check_engine(config: DictConfig) -> Iterator[Problem]:
    """Check that adapters are trained, by an FSDP engine, and without a scale for gradients."""
    if not adapter_rank(config):
        text = "is 0, and over weights in nf4 only adapters are trained"
        yield error(f"{_MODEL}.lora_rank", text, "set it, e.g. to 32")
    strategy = config.actor_rollout_ref.actor.strategy
    if strategy not in ("fsdp", "fsdp2"):
        text = f"is {strategy}, and weights in nf4 are for veRL's FSDP engine"
        yield error(f"{_ACTOR}.strategy", text, "train with platform=gpu or platform=gpu_sdpa")
    dtype_key = f"{_FSDP}.mixed_precision.param_dtype"
    if str(OmegaConf.select(config, dtype_key)) in _HALF:
        text = "is fp16, whose gradients would need a scale"
        yield error(dtype_key, text, "set it to bf16 or fp32")
    for key, reason in _OFF.items():
        if OmegaConf.select(config, key):
            yield error(key, f"does not go with weights in nf4: it {reason}", f"set {key}=null")


def _check_generation(config: DictConfig) -> Iterator[Problem]:
    """Check that vLLM generates with the weights with which the actor computes."""
    rollout = config.actor_rollout_ref.rollout
    merged = bool((config.actor_rollout_ref.model.get("lora") or {}).get("merge"))
    if not merged and str(rollout.load_format) != "dummy":
        text = f"is {rollout.load_format}: vLLM would keep the weights before they were quantised"
        yield error(f"{_ROLLOUT}.load_format", text, "set it to dummy: it is sent the dequantised weights")
    backend = str(rollout.checkpoint_engine.backend)
    if backend.startswith("delta"):
        text = f"{backend} sends differences of shards, and weights in nf4 have none"
        yield error(f"{_ROLLOUT}.checkpoint_engine.backend", text, "set it to naive")


def _check_checkpoint(config: DictConfig) -> Iterator[Problem]:
    """Check that a checkpoint contains the adapters and no packed weights."""
    if "hf_model" in saved_contents(config):
        text = "has hf_model, which would save packed weights of 4 bits as a model"
        remedy = "set it to [model,optimizer,extra], and export with `rag-r1 model export-nf4`"
        yield error(SAVE_CONTENTS, text, remedy)
    if not OmegaConf.select(config, f"{_ACTOR}.checkpoint.save_lora_only"):
        text = "is not true, so packed weights of 4 bits would be saved with the adapters"
        yield error(f"{_ACTOR}.checkpoint.save_lora_only", text, "set it to true")


def _check_model(config: DictConfig) -> Iterator[Problem]:
    """Check that the model has weights of 16 or 32 bits and no experts, which would not be quantised."""
    if is_unset(config, f"{_MODEL}.path"):
        return
    path = str(config.actor_rollout_ref.model.path)
    keys = model_config(Path(path).expanduser())
    if keys.get("quantization_config"):
        text = f"{path} is quantised already"
        yield error(f"{_MODEL}.path", text, "give the model with weights of 16 or 32 bits")
    if any(keys.get(key) for key in EXPERT_KEYS):
        text = f"{path} has experts, which are not linear layers and would not be quantised"
        yield error(f"{_MODEL}.path", text, "give a model without experts, or train without nf4")
