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
    """Threads with which a model's folder is computed on a CPU: one for a tiny model, else all cores that
    this process may use."""
    weights = [file.stat().st_size for kind in ("*.safetensors", "*.bin") for file in model.glob(kind)]
    return 1 if weights and sum(weights) < _ONE_THREAD_BYTES else usable_cores()
