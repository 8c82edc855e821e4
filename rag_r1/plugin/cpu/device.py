"""The CPU as veRL's device module.

veRL reads memory and random state from ``get_torch_device()``, which is ``torch.cuda`` on NVIDIA GPUs. On a
CPU this module takes its place. It passes on the attributes of ``torch.cpu`` (`__getattr__`) and defines
those that are missing there. "Memory" is that of the machine and of this process, so veRL's memory metrics
stay meaningful.
"""

from __future__ import annotations

from typing import Any

import psutil
import torch


def __getattr__(name: str) -> Any:
    """Return an attribute of ``torch.cpu``, for all names that are not defined here."""
    return getattr(torch.cpu, name)


def is_available() -> bool:
    """Return True: there is always a CPU."""
    return True


def device_count() -> int:
    """Return 1: PyTorch treats all cores as one device."""
    return 1


def current_device() -> str:
    """Return "cpu", and not an index, because ``tensor.to(0)`` would mean the first accelerator."""
    return "cpu"


def set_device(device: Any) -> None:
    """Do nothing: there is only one CPU device."""


def get_device_name(device: Any = None) -> str:
    """Return the name of the device in logs and reports."""
    return "CPU"


def synchronize(device: Any = None) -> None:
    """Do nothing: work on a CPU is finished when the call returns."""


def empty_cache() -> None:
    """Do nothing: the CPU allocator keeps no cache that could be released."""


def ipc_collect() -> None:
    """Do nothing: no memory is shared through device handles."""


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Do nothing: the operating system limits memory, not PyTorch."""


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return (free, total) memory of the machine in bytes."""
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def memory_allocated(device: Any = None) -> int:
    """Return the resident memory of this process in bytes."""
    return psutil.Process().memory_info().rss


# A CPU has no "reserved" memory apart from the resident one, and psutil does not report the peak.
memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Return the state of PyTorch's random number generator for the CPU."""
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    """Restore a state that `get_rng_state` returned."""
    torch.set_rng_state(state)
