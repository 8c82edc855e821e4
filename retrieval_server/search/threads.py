"""Threads by the size of a batch, and the OpenMP runtimes that a process has loaded.

torch and FAISS each bring an OpenMP runtime of their own, and the idle threads of one spin for a while on the
cores on which the other computes. A single query is too little work to divide among many threads; a batch is
not. So each library can be given one number of threads for a query alone and another for a batch. What is
best depends on the processor: `benchmarks/openmp_runtimes.py` shows what is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_MAPS = "/proc/{}/maps"
#: What the file of an OpenMP runtime is called: GNU's, LLVM's, Intel's.
_RUNTIMES = ("libgomp", "libomp", "libiomp")


class Threads:
    """Tells a library how many threads to use, ``alone`` for one query and ``together`` for more.

    ``set_threads`` sets the number for the thread that calls it. None leaves the library's own number as long
    as neither is given; if only one is, the other is ``usual()``, the number at the first batch.
    """

    def __init__(
        self,
        set_threads: Callable[[int], None],
        usual: Callable[[], int],
        alone: int | None,
        together: int | None,
    ):
        self._set, self._usual = set_threads, usual
        self._alone, self._together = alone, together

    @property
    def differ(self) -> bool:
        """Whether a query alone is computed by another number of threads than a batch."""
        return self._alone != self._together

    def use_for(self, queries: int) -> None:
        """Call this in the thread that computes a batch of so many queries, before it does."""
        if self._alone is None and self._together is None:
            return
        if self._alone is None or self._together is None:
            usual = self._usual()
            self._alone = self._alone or usual
            self._together = self._together or usual
        self._set(self._alone if queries == 1 else self._together)


def loaded_runtimes(process: int | str = "self") -> list[str]:
    """The files of the OpenMP runtimes in a process, in the order of their paths; Linux only.

    Raises OSError if there is no such process, or it belongs to somebody else.
    """
    maps = Path(_MAPS.format(process)).read_text(encoding="utf-8", errors="replace")
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if len(line.split(maxsplit=5)) == 6}
    return sorted(path for path in paths if Path(path).name.startswith(_RUNTIMES))
