"""Counts the CPU cores that this process may use, and chooses the number of threads for a model.

A process may use fewer cores than the machine has, if it is bound to some of them (`taskset`, or `docker run
--cpuset-cpus`). A limit on the CPU time of a container (`--cpus`) is not seen.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

#: Size of the weights below which a model is tiny. One thread then computes a step faster than several
#: threads can be woken.
_TINY_BYTES = 64 << 20
#: Linux's description of the CPU.
_CPUINFO = Path("/proc/cpuinfo")


def usable_cores() -> int:
    """Return the number of cores that this process may use, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_threads(model: Path) -> int:
    """Return the number of threads with which vLLM runs a model on the CPU: 1 for a tiny model, else one per
    usable core."""
    return 1 if _is_tiny(model) else usable_cores()


def trainer_threads(model: Path, workers: int) -> int:
    """Return the number of threads for each of a trainer's workers, which share the usable cores.

    For a tiny model one core is left to the retrieval server and all other processes. OpenMP threads spin
    while they wait for each other: on two busy cores, two threads took ten times as long as one. The
    operations of larger models are long enough to avoid this.
    """
    cores = usable_cores() - 1 if _is_tiny(model) else usable_cores()
    return max(1, cores // max(1, workers))


def multiplies_bf16() -> bool | None:
    """Return whether the CPU has instructions for products of bf16 (x86's AVX512 or AMX, or ARM's); None if
    the system does not tell. Without them PyTorch takes several times as long in bf16 as in fp32."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return bool(re.search(r"\b(?:avx512_bf16|amx_bf16|bf16)\b", text))


def _is_tiny(model: Path) -> bool:
    """Return whether the weights in a model's folder are tiny; False if there are none."""
    sizes = [file.stat().st_size for pattern in ("*.safetensors", "*.bin") for file in model.glob(pattern)]
    return bool(sizes) and sum(sizes) < _TINY_BYTES
