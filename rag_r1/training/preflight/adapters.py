"""Checks that LoRA adapters reach the engine, and that rounding does not remove them.

veRL sends adapters to vLLM in one of two ways, which `actor_rollout_ref.model.lora.merge` selects
(workers/engine/fsdp/transformer_impl.py, `get_per_tensor_param`). If they are not merged, vLLM gets the
adapters themselves, which its CPU build cannot load. If they are merged, vLLM gets weights that are rounded
to bf16. Most changes of the first updates are smaller than the resolution of bf16, and are lost. The trainer
that uses separate GPUs for generation only supports merged weights: it drops the adapters' configuration
(engine_workers.py, `update_weights`), and without merging it would send only the frozen weights after every
step.

Unmerged adapters are collected with PEFT's `get_peft_model_state_dict` (utils/fsdp_utils.py,
`collect_lora_params`). From version 0.20 on PEFT compares the names of weights with those of modules. FSDP1
changes the latter, so none is found, and vLLM generates with the frozen weights alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from rag_r1.options.problems import Problem, error, warning
from rag_r1.system.installation import version_of
from rag_r1.training.config_facts import SAVE_CONTENTS, adapter_rank, gpu_count, is_nf4, is_separate

_MODEL = "actor_rollout_ref.model"
_MERGE = f"{_MODEL}.lora.merge"
_ROLLOUT = "actor_rollout_ref.rollout"


def check_adapters(config: DictConfig) -> Iterator[Problem]:
    """Check that adapters are sent to the engine in a form that it can load, and in the precision in which
    they are trained."""
    if not adapter_rank(config):
        return
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    lora = model.get("lora") or {}
    yield from _check_rank(config)
    is_exported = "hf_model" in (OmegaConf.select(config, SAVE_CONTENTS) or ())
    if is_exported and config.actor_rollout_ref.actor.strategy != "megatron" and not is_nf4(config):
        text = "has hf_model, but veRL saves adapters under PEFT's names, and nothing loads that model"
        yield warning(SAVE_CONTENTS, text, "set it to [model,optimizer,extra]")
    is_merged = bool(lora.get("merge"))
    has_own_gpus = is_separate(config)
    on_cpu = config.trainer.device == "cpu"
    if on_cpu and not is_merged:
        remedy = "set it to true: merged weights are then sent to vLLM instead"
        yield error(_MERGE, "vLLM's CPU build cannot load LoRA adapters", remedy)
    elif on_cpu:
        return  # no warning about bf16 here: merging is the only way on a CPU
    elif has_own_gpus and not is_merged:
        text = "with trainer_mode=separate_async veRL sends unmerged adapters to no engine"
        yield error(_MERGE, text, "use another trainer.v1.trainer_mode, or set this to true")
    elif is_merged:
        text = "merged weights are rounded to bf16, in which the first updates are lost"
        remedy = "use another trainer.v1.trainer_mode, and set this to false"
        yield warning(_MERGE, text, remedy if has_own_gpus else "set it to false")
    elif rollout.get("layered_summon") and "dummy" in str(rollout.load_format):
        text = f"is {rollout.load_format}, but with layered_summon=true vLLM must read the weights itself"
        yield error(f"{_ROLLOUT}.load_format", text, "set it to safetensors")
    if not is_merged and config.actor_rollout_ref.actor.strategy == "fsdp" and not is_nf4(config):
        yield from _check_collection(config)


def _check_rank(config: DictConfig) -> Iterator[Problem]:
    """Check that the rank is given by the key that the trainer's engine reads."""
    model = config.actor_rollout_ref.model
    megatron_rank, fsdp_rank = (model.get("lora") or {}).get("rank") or 0, model.get("lora_rank") or 0
    if config.actor_rollout_ref.actor.strategy == "megatron":
        if not megatron_rank:
            text = "is for FSDP: Megatron takes the rank from lora.rank, 0, and would train all weights"
            remedy = f"set {_MODEL}.lora.rank and its target_modules, or train with platform=gpu"
            yield error(f"{_MODEL}.lora_rank", text, remedy)
    elif megatron_rank and megatron_rank != fsdp_rank:
        text = f"is for Megatron: FSDP takes the rank from lora_rank, which is {fsdp_rank}"
        yield error(f"{_MODEL}.lora.rank", text, f"set {_MODEL}.lora_rank instead")


def _check_collection(config: DictConfig) -> Iterator[Problem]:
    """Check that veRL finds the adapters in a model that FSDP1 has wrapped."""
    peft = version_of("peft")
    if peft and [int(number) for number in peft.split(".")[:2]] >= [0, 20]:
        text = f"PEFT {peft} finds no adapters under fsdp, and vLLM would get none"
        yield error(f"{_MODEL}.lora_rank", text, 'pip install "peft<0.20", on all nodes')
    if config.actor_rollout_ref.rollout.get("layered_summon") and gpu_count(config) == 1:
        text = "ends with an error on one GPU, at the first update of vLLM's weights"
        yield error(f"{_ROLLOUT}.layered_summon", text, "set it to false")
