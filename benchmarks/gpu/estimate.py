"""Estimates the memory of veRL's engine alone with the preflight's formulas, by measured phase.

The parts come from the preflight's estimate of the recipe (rag_r1/training/preflight/memory). Its constant
for the CUDA contexts was fitted to a GPU on which vLLM sleeps. Without vLLM one context takes its place, and
on a CPU none does, since the meter subtracts the resident bytes of the process itself.
"""

from __future__ import annotations

from copy import deepcopy

from omegaconf import DictConfig, OmegaConf, open_dict

from rag_r1.training.preflight.memory.estimate import memory_of
from rag_r1.training.preflight.memory.formulas import CONTEXT
from rag_r1.training.preflight.memory.shape import ModelShape

#: The parts of the preflight's estimate that are in memory in all phases but `waiting`.
_HELD = ("weights", "adapters")
PHASES = ("load", "forward and backward", "optimizer step", "gather", "waiting")


def estimate_of(config: DictConfig, shape: ModelShape, gpu: float) -> dict[str, float]:
    """Return the estimated bytes of each phase in PHASES; `gpu` is the memory of the GPU in bytes.

    `load` has the model before its optimizer is used, `gather` makes the weights for vLLM one by one, and
    `waiting` has the memory that remains on the GPU while others compute.
    """
    memory = memory_of(_as_on_gpu(config), shape, gpu)
    context = 0.0 if config.trainer.device == "cpu" else CONTEXT
    held = sum(memory.phase_bytes("update", part) for part in _HELD)
    by_phase = {
        "load": held,
        "forward and backward": memory.phase_bytes("update") - memory.phase_bytes("update", "contexts"),
        "optimizer step": held + memory.phase_bytes("update", "optimizer"),
        "gather": sum(memory.phase_bytes("weights to vLLM", part) for part in _HELD),
        "waiting": memory.phase_bytes("generation", "kept by other roles"),
    }
    return {phase: size + context for phase, size in by_phase.items()}


def _as_on_gpu(config: DictConfig) -> DictConfig:
    """Return the configuration for a GPU, since the preflight estimates no phases for a CPU."""
    config = deepcopy(config)
    OmegaConf.set_readonly(config, False)
    with open_dict(config):
        config.trainer.device = "cuda"
    return config
