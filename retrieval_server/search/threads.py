"""Sets the numbers of threads with which a single query and a batch are encoded.

A single query may be too little work to divide among many threads, while a batch is not. So the encoder can
have one number of threads for a single query and another for a batch, as the search can
(retrieval_server/search/vectors/flat_search.py). Which numbers are best depends on the processor.
encode/cpu_settings.py prevents the idle threads of one OpenMP runtime from occupying the cores of another.

Setting a number may change it for the whole process, and so for other indexes. A library's default is
therefore read once, before any number is set.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from retrieval_server.determinism import ProbeResult
from retrieval_server.search.options import OpenOptions

if TYPE_CHECKING:
    from retrieval_server.encode.encoder import Encoder


class ThreadCount:
    """Sets how many threads a library uses: `alone` for a single query, `together` for a batch.

    `set_threads` sets the number for the calling thread or for the process. If both numbers are None, the
    library's default remains. If only one is None, it is replaced by `default()`, as it was at the first call
    in the process.
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
        """Whether a single query is computed by another number of threads than a batch."""
        return self._alone != self._together

    def use_for(self, queries: int) -> None:
        """Set the number for a batch of this size. Call it in the thread that computes the batch."""
        number = self._alone if queries == 1 else self._together
        if number is not None:
            self._set(number)


@cache
def _default_number(default: Callable[[], int]) -> int:
    """Return `default()`, as it was at the first call in the process."""
    return default()


def encoder_threads(options: OpenOptions) -> ThreadCount:
    """Return the thread counts of an encoder in this process, as the options set them."""
    alone, together = options.encode_threads_alone, options.encode_threads
    return ThreadCount(_set_torch_threads, _torch_threads, alone, together)


def probe_encoder(encoder: Encoder, threads: ThreadCount) -> ProbeResult:
    """Measure what the encoder guarantees with these thread counts.

    The probe uses the number for a batch. If a single query has another number, the guarantee is at most
    `order`, and `none` in 16 or 8 bits.
    """
    threads.use_for(2)
    probe = encoder.probed
    return probe.without_bits() if threads.differs else probe


def _set_torch_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)


def _torch_threads() -> int:
    import torch

    return torch.get_num_threads()
