"""Peaks of memory: on a GPU what PyTorch has allocated and what the whole GPU holds; on a CPU resident bytes.

`PeakMeter` measures within this process, which may be the only one on its GPU: peaks of what PyTorch has
allocated and reserved are exact, and what the GPU holds is read a hundred times a second. On a CPU the
resident bytes count, above those at the meter's start. `TrainingMeter` watches processes that this one has
started, once a second: the whole GPU, with vLLM in it, by nvidia-smi; on a CPU their resident bytes together.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import psutil

from rag_r1.system.gpu_driver import gpu_memory_used


class Sampler:
    """Reads a number in a thread for the length of a block: `values`, each with the seconds since its
    begin."""

    def __init__(self, read: Callable[[], float], every_s: float):
        self._read, self._every_s = read, every_s
        self._over = threading.Event()
        self.values: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._sample()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._over.set()
        self._thread.join()
        self._sample()

    @property
    def peak(self) -> float:
        """The highest."""
        return max(value for _, value in self.values)

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self._sample()

    def _sample(self) -> None:
        self.values.append((time.monotonic() - self._began, self._read()))


class PeakMeter:
    """Peaks of this process within blocks; see the top of the module. Bytes."""

    def __init__(self) -> None:
        import torch

        self._gpu = torch.cuda if torch.cuda.is_available() else None
        self._base = 0.0 if self._gpu else _resident()

    @contextmanager
    def peak(self) -> Iterator[dict[str, float]]:
        """Filled when the block ends: `used`, on a GPU `allocated` and `reserved`, and the block's
        `seconds`."""
        gc.collect()
        if self._gpu:
            self._gpu.empty_cache()
            self._gpu.reset_peak_memory_stats()
        peaks: dict[str, float] = {}
        started = time.perf_counter()
        with Sampler(self._used, 0.01) as sampler:
            yield peaks
            if self._gpu:
                self._gpu.synchronize()
            peaks["seconds"] = time.perf_counter() - started
        peaks["used"] = sampler.peak
        if self._gpu:
            peaks["allocated"] = self._gpu.max_memory_allocated()
            peaks["reserved"] = self._gpu.max_memory_reserved()

    def _used(self) -> float:
        if self._gpu:
            free, total = self._gpu.mem_get_info()
            return total - free
        return _resident() - self._base


class PhaseMeter:
    """The same by phase: `peaks` has those of the last block of each."""

    def __init__(self) -> None:
        self._meter = PeakMeter()
        self.peaks: dict[str, dict[str, float]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A block of this phase."""
        with self._meter.peak() as peak:
            yield
        self.peaks[name] = peak

    def seconds(self, *names: str) -> float:
        """The seconds of the last blocks of these phases together."""
        return sum(self.peaks[name]["seconds"] for name in names)


class TrainingMeter(Sampler):
    """The memory of a training that this process starts in the block; see the top of the module."""

    def __init__(self) -> None:
        super().__init__(lambda: gpu_memory_used() or _of_children(), 1.0)

    @property
    def timeline(self) -> list[tuple[int, float]]:
        """The GB used over time, as pairs of seconds and GB."""
        return [(round(second), round(value / 1e9, 2)) for second, value in self.values]


def _resident() -> float:
    return float(psutil.Process().memory_info().rss)


def _of_children() -> float:
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            total += process.memory_info().rss
        except psutil.Error:  # ended meanwhile
            continue
    return total
