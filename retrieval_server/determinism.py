"""Determinism: what an index guarantees about its answers under load.

A query is encoded in a batch with whatever other queries are waiting. Whether this changes its vector depends
on the library that multiplies matrices. Intel MKL in its strict mode (encode/cpu_settings.py) gives a row the
same bits alone and in a batch on Intel CPUs, but not on AMD's, and CUDA never promises it. So each process
that encodes measures it (encode/batch_probe.py). The result is a `Determinism`, which `/ready` and the log
show.

The stages after the encoder need no probe: the candidates that FAISS finds are scored again in float64, query
by query (search/vectors/faiss_search.py), and BM25 adds up the scores of the words of one query.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

#: The largest difference between the scores of a query alone and in a batch under the guarantee `order`.
TIE = 1e-6


class Determinism(StrEnum):
    """What holds for the answer to a query, whatever else is in its batch; the strongest guarantee first."""

    #: The same ids and the same bits of every score.
    BITS = "bits"
    #: Scores within TIE, and the same ids in the same order, except where scores are within TIE.
    ORDER = "order"
    #: Neither, since the model computes in 16 or 8 bits, and scores differ by their rounding errors.
    NONE = "none"

    @property
    def meaning(self) -> str:
        """The guarantee in words, for the log."""
        return {
            Determinism.BITS: "the same ids and the same bits of every score at every load",
            Determinism.ORDER: f"the same ids at every load, except where scores are within {TIE:g}",
            Determinism.NONE: "answers may depend on the load: the model computes in 16 or 8 bits",
        }[self]


def weakest_determinism(guarantees: Iterable[Determinism]) -> Determinism:
    """Return the guarantee of an answer that depends on all of these; BITS if there are none."""
    strongest_first = list(Determinism)
    return max(guarantees, key=strongest_first.index, default=Determinism.BITS)


@dataclass(frozen=True)
class ProbeResult:
    """The result of the probe in one process."""

    guarantee: Determinism
    #: With BITS, a hash of the products. A model has the same fingerprint in all processes that multiply
    #: alike.
    fingerprint: str = ""
    #: The guarantee that the data type allows if the bits differ after all; NONE in 16 and 8 bits.
    fallback: Determinism = Determinism.ORDER

    def without_bits(self) -> ProbeResult:
        """Return the result for a case in which something that was not probed can change the bits."""
        return replace(self, guarantee=weakest_determinism([self.guarantee, self.fallback]))


def combine_probes(probes: Iterable[ProbeResult]) -> Determinism:
    """Return the guarantee of several processes, any of which may get a query.

    It is the weakest of their guarantees, and `bits` only if all of them multiply alike.
    """
    distinct = set(probes)
    if len(distinct) > 1:
        distinct = {probe.without_bits() for probe in distinct}
    return weakest_determinism(probe.guarantee for probe in distinct)
