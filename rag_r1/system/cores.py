"""The cores that this process may use, fewer than the machine has at times, and how many a model needs."""

from __future__ import annotations

import os
from pathlib import Path

#: Of a model with smaller weights, a thread computes a step faster than several can be woken for it.
_ONE_THREAD_BYTES = 64 << 20


def usable_cores() -> int:
    """Their number, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_threads(model: Path) -> int:
    """Threads with which vLLM computes a model's folder on a CPU: one for a tiny model, else all cores that
    this process may use."""
    return 1 if _is_tiny(model) else usable_cores()


def trainer_threads(model: Path, workers: int) -> int:
    """Threads of each of a trainer's workers, which share the cores. A tiny model leaves one core to the
    retrieval server and everything else: OpenMP threads spin while they wait for each other, and on two busy
    cores two threads took ten times as long as one. The operations of a larger model are long enough."""
    cores = usable_cores() - 1 if _is_tiny(model) else usable_cores()
    return max(1, cores // max(1, workers))


def _is_tiny(model: Path) -> bool:
    weights = [file.stat().st_size for kind in ("*.safetensors", "*.bin") for file in model.glob(kind)]
    return bool(weights) and sum(weights) < _ONE_THREAD_BYTES
