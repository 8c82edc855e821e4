"""Estimates the memory of a run for `--check-only`, and warns about phases that may not fit on a GPU.

These are only warnings, because the estimate's constants were measured only once each (formulas.py). The
GPU is the one that the recipe names (`rag_r1.gpu_memory_gb`), else this machine's, else one with 80 GB.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rag_r1.inference.model_folders import is_hub_name
from rag_r1.inference.model_folders.model_config import model_config
from rag_r1.options.problems import PreflightReport, Problem, is_unset, warning
from rag_r1.system.gpu_driver import gpu_memory
from rag_r1.training.preflight.memory.estimate import H100_BYTES, MemoryEstimate, memory_of
from rag_r1.training.preflight.memory.shape import shape_of
from rag_r1.training.preflight.memory.table import memory_table

_KEY = "rag_r1.gpu_memory_gb"
#: Phase -> the key that makes it need less memory, and the change of that key.
_REMEDIES = {
    "generation": ("actor_rollout_ref.rollout.gpu_memory_utilization", "lower it"),
    "weights to vLLM": (
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes",
        "lower it, or set actor_rollout_ref.rollout.tensor_model_parallel_size higher",
    ),
    "log-probs": ("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu", "lower it"),
    "reference": ("actor_rollout_ref.ref.log_prob_max_token_len_per_gpu", "lower it"),
    "critic": ("critic.ppo_max_token_len_per_gpu", "lower it"),
    "update": (
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
        "lower it, set actor_rollout_ref.model.use_fused_kernels=true, or train adapters",
    ),
}


def check_memory(config: DictConfig, report: PreflightReport) -> Iterator[Problem]:
    """Add the table of the estimate to the report, and yield a warning for each phase that may not fit on a
    GPU."""
    memory = estimate_of(config)
    if memory is None:
        return
    report.tables.append(memory_table(memory))
    if not memory.phases:
        return  # on a CPU
    gpu_gb = f"{memory.gpu_bytes / 1e9:.0f} GB"
    for phase in memory.phases:
        if phase.total_bytes > memory.gpu_bytes:
            key, remedy = _REMEDIES[phase.name]
            text = f"{phase.name} may need {phase.total_bytes / 1e9:.0f} GB of a GPU of {gpu_gb}"
            yield warning(key, text, f"{remedy}; `--check-only` shows the estimate")
    if memory.cached_contexts < 1:
        text = f"vLLM's cache may have no room for a row of {memory.context_tokens:,} tokens"
        remedy = "raise it, or set actor_rollout_ref.rollout.tensor_model_parallel_size higher"
        yield warning("actor_rollout_ref.rollout.gpu_memory_utilization", text, remedy)


def estimate_of(config: DictConfig) -> MemoryEstimate | None:
    """Return the estimate for a run's model; None if its config.json cannot be read or lacks a size."""
    if is_unset(config, "actor_rollout_ref.model.path"):
        return None
    shape = shape_of(model_config(_folder_of(str(config.actor_rollout_ref.model.path))))
    critic_shape = shape_of(model_config(_folder_of(str(OmegaConf.select(config, "critic.model.path")))))
    return None if shape is None else memory_of(config, shape, gpu_bytes(config), critic_shape)


def gpu_bytes(config: DictConfig) -> float:
    """Return the bytes of a GPU: of the one that the recipe names, else of this machine's, else 80 GB. A
    value that is no number is reported with the other keys of the block `rag_r1`."""
    configured = OmegaConf.select(config, _KEY)
    is_number = isinstance(configured, int | float) and configured > 0
    return float(configured) * 1e9 if is_number else gpu_memory() or H100_BYTES


def _folder_of(name: str) -> Path:
    """Return the folder of a model or, for a name on the Hub, that of its config.json in the cache."""
    if not is_hub_name(name):
        return Path(name).expanduser()
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(name, "config.json")
    return Path(file).parent if isinstance(file, str) else Path(name)
