"""Measures peaks of memory: of PyTorch and of the whole GPU, or of resident bytes on a CPU.

`PeakMeter` measures this process, which must be the only one on its GPU. The peaks of the memory that PyTorch
has allocated and reserved are exact; the used memory of the GPU is read a hundred times a second. On a CPU it
measures the resident bytes above those at its start. `PhaseMeter` keeps such peaks by phase. `TrainingMeter`
watches the processes that this one has started, once a second: by nvidia-smi the whole GPU, including vLLM,
and on a CPU the sum of their resident bytes.
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
    """Reads a number repeatedly in a thread during a block.

    `values` has pairs of the seconds since the beginning of the block and the number.
    """

    def __init__(self, read: Callable[[], float], every_s: float):
        self._read, self._every_s = read, every_s
        self._finished = threading.Event()
        self.values: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._sample()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._finished.set()
        self._thread.join()
        self._sample()

    @property
    def peak(self) -> float:
        """The highest number."""
        return max(value for _, value in self.values)

    def _run(self) -> None:
        while not self._finished.wait(self._every_s):
            self._sample()

    def _sample(self) -> None:
        self.values.append((time.monotonic() - self._started, self._read()))


class PeakMeter:
    """Measures the peaks of this process within blocks, in bytes."""

    def __init__(self) -> None:
        import torch

        gc.collect()  # or the blocks would seem to use less by what they collect
        self._gpu = torch.cuda if torch.cuda.is_available() else None
        self._base = 0.0 if self._gpu else _resident()

    @contextmanager
    def peak(self) -> Iterator[dict[str, float]]:
        """Yield a dict that is filled at the end of the block.

        It has the peak of `used` bytes, on a GPU also of `allocated` and `reserved` ones, and the `seconds`
        of the block.
        """
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
    """Measures peaks by phase; `peaks` has those of the last block of each phase."""

    def __init__(self) -> None:
        self._meter = PeakMeter()
        self.peaks: dict[str, dict[str, float]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a block of this phase."""
        with self._meter.peak() as peak:
            yield
        self.peaks[name] = peak

    def seconds(self, *names: str) -> float:
        """Return the sum of the seconds of the last blocks of these phases."""
        return sum(self.peaks[name]["seconds"] for name in names)


class TrainingMeter(Sampler):
    """Measures the memory of a training that this process starts in the block, in bytes."""

    def __init__(self) -> None:
        self._on_gpu = gpu_memory_used() is not None
        super().__init__(self._used, 1.0)

    def _used(self) -> float:
        """Return the bytes in use; on a GPU, those of the last reading if nvidia-smi does not answer."""
        if not self._on_gpu:
            return _resident_of_children()
        if (used := gpu_memory_used()) is not None:
            return used
        return self.values[-1][1] if self.values else 0.0

    @property
    def timeline(self) -> list[tuple[int, float]]:
        """The GB used over time, as pairs of seconds and GB."""
        return [(round(second), round(value / 1e9, 2)) for second, value in self.values]


def _resident() -> float:
    return float(psutil.Process().memory_info().rss)


def _resident_of_children() -> float:
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            total += process.memory_info().rss
        except psutil.Error:  # the process has ended
            continue
    return total
