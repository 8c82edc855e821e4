"""The number of threads for each batch size, and the OpenMP runtimes of a process.

A single query may be too little work to divide among many threads; a batch is not. So the encoder can be
given one number of threads for a query alone and another for a batch, as the search can
(retrieval_server/search/vectors/flat_search.py). What is best depends on the processor.
`benchmarks/openmp_runtimes.py` shows which runtimes are loaded; encode/cpu_settings.py keeps the idle threads
of one from the cores on which another computes.

A number that is set may hold for the whole process, and so for other indexes in it. A library's own number is
therefore read once, before the first is set.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval_server.determinism import ProbeResult
from retrieval_server.search.options import OpenOptions

if TYPE_CHECKING:
    from retrieval_server.encode.encoder import Encoder

_MAPS = "/proc/{}/maps"
#: How the file names of OpenMP runtimes begin: GNU's, LLVM's, Intel's.
_RUNTIMES = ("libgomp", "libomp", "libiomp")


class ThreadCount:
    """Tells a library how many threads to use, `alone` for one query and `together` for more.

    `set_threads` sets the number for the thread that calls it, or for the process. None leaves the
    library's own number as long as neither is given; if only one is, the other is `default()`, as it was
    when the process first asked for it.
    """

    def __init__(
        self,
        set_threads: Callable[[int], None],
        default: Callable[[], int],
        alone: int | None,
        together: int | None,
    ):
        if (alone is None) != (together is None):
            number = _default_number(default)
            alone, together = alone or number, together or number
        self._set, self._alone, self._together = set_threads, alone, together

    @property
    def differs(self) -> bool:
        """Whether a query alone is computed by another number of threads than a batch."""
        return self._alone != self._together

    def use_for(self, queries: int) -> None:
        """Set the number for a batch of so many queries; call it in the thread that computes the batch."""
        number = self._alone if queries == 1 else self._together
        if number is not None:
            self._set(number)


@cache
def _default_number(default: Callable[[], int]) -> int:
    """`default()`, as it was at the first call in the process."""
    return default()


def encoder_threads(options: OpenOptions) -> ThreadCount:
    """The threads of an encoder in this process, as the options say."""
    return ThreadCount(
        _set_torch_threads, _torch_threads, options.encode_threads_alone, options.encode_threads
    )


def probe_encoder(encoder: Encoder, threads: ThreadCount) -> ProbeResult:
    """Measures what the encoder guarantees with these threads. The number for a batch is the one that is
    probed; if a query alone has another, bits are not promised: the order is, and in 16 or 8 bits nothing."""
    threads.use_for(2)
    probe = encoder.probed
    return probe.without_bits() if threads.differs else probe


def _set_torch_threads(number: int) -> None:
    import torch

    torch.set_num_threads(number)


def _torch_threads() -> int:
    import torch

    return torch.get_num_threads()


def openmp_runtimes(process: int | str = "self") -> list[str]:
    """The files of the OpenMP runtimes in a process, in the order of their paths; Linux only.

    Raises OSError if there is no such process, or it belongs to another user.
    """
    maps = Path(_MAPS.format(process)).read_text(encoding="utf-8", errors="replace")
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if len(line.split(maxsplit=5)) == 6}
    return sorted(path for path in paths if Path(path).name.startswith(_RUNTIMES))
