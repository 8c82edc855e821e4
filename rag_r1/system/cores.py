"""The cores that this process may use, which can be fewer than the machine has, and the threads for a
model."""

from __future__ import annotations

import os
from pathlib import Path

#: Weights of a tiny model have fewer bytes: one thread computes its step faster than several can be woken.
_TINY_BYTES = 64 << 20


def usable_cores() -> int:
    """Returns how many cores this process may use, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_threads(model: Path) -> int:
    """Returns how many threads vLLM uses on a CPU for the model in a folder: one for a tiny model, else all
    cores that this process may use."""
    return 1 if _is_tiny(model) else usable_cores()


def trainer_threads(model: Path, workers: int) -> int:
    """Returns how many threads each of a trainer's workers uses, which share the cores. For a tiny model one
    core is left to the retrieval server and everything else: OpenMP threads spin while they wait for each
    other, and on two busy cores two threads took ten times as long as one. A larger model's operations are
    long enough."""
    cores = usable_cores() - 1 if _is_tiny(model) else usable_cores()
    return max(1, cores // max(1, workers))


def _is_tiny(model: Path) -> bool:
    """Returns whether the weights in a model's folder are tiny; False without any."""
    sizes = [file.stat().st_size for pattern in ("*.safetensors", "*.bin") for file in model.glob(pattern)]
    return bool(sizes) and sum(sizes) < _TINY_BYTES
