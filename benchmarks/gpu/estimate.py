"""What the preflight's formulas give for veRL's engine alone, in the phases that are measured.

The parts are those of the preflight's own estimate of the recipe (rag_r1/training/preflight/memory). Its
constant for the contexts was fitted to a GPU on which vLLM sleeps; here is no vLLM, so one context stands in
its place, and on a CPU, where the base of the resident bytes is subtracted, none.
"""

from __future__ import annotations

from copy import deepcopy

from omegaconf import DictConfig, OmegaConf, open_dict

from rag_r1.training.preflight.memory.estimate import memory_of
from rag_r1.training.preflight.memory.formulas import CONTEXT
from rag_r1.training.preflight.memory.shape import ModelShape

#: The parts of the preflight's phase that are there in each of ours.
_HELD = ("weights", "adapters")
PHASES = ("load", "forward and backward", "optimizer step", "gather", "waiting")


def estimate_of(config: DictConfig, shape: ModelShape, gpu: float) -> dict[str, float]:
    """Bytes by phase, a key of PHASES: `load`, the model with its optimizer not yet in use; `gather`, the
    weights made for vLLM one by one; `waiting`, what is left on the GPU while others compute."""
    memory = memory_of(_as_on_gpu(config), shape, gpu)
    context = 0.0 if config.trainer.device == "cpu" else CONTEXT
    held = sum(memory.phase_bytes("update", part) for part in _HELD)
    of_phase = {
        "load": held,
        "forward and backward": memory.phase_bytes("update") - memory.phase_bytes("update", "contexts"),
        "optimizer step": held + memory.phase_bytes("update", "optimizer"),
        "gather": sum(memory.phase_bytes("weights to vLLM", part) for part in _HELD),
        "waiting": memory.phase_bytes("generation", "kept by other roles"),
    }
    return {phase: size + context for phase, size in of_phase.items()}


def _as_on_gpu(config: DictConfig) -> DictConfig:
    """The preflight has no phases for a CPU, on which nothing alternates."""
    config = deepcopy(config)
    OmegaConf.set_readonly(config, False)
    with open_dict(config):
        config.trainer.device = "cuda"
    return config
