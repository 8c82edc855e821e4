"""What every test that compares answers given alone and in company asks for: as much as is guaranteed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from retrieval_server.determinism import TIE, Determinism
from retrieval_server.source import ScoredPassage

#: One query's answer: ids (or whatever else names a document) and scores, best first.
Answer = Sequence[tuple[object, float]]


def plain(hits: Sequence[ScoredPassage]) -> Answer:
    """An answer of the package in that form."""
    return [(hit.passage, hit.score) for hit in hits]


def wired(hits: Sequence[dict]) -> Answer:
    """An answer of ``/retrieve`` with scores in that form; a document stands for itself."""
    return [(tuple(sorted(hit["document"].items())), hit["score"]) for hit in hits]


def assert_same_answers(
    results: Sequence[Answer], expected: Sequence[Answer], guarantee: Determinism | str
) -> None:
    """``bits``: equal. ``order``: scores within 1e-6, and the same ids but for ties within 1e-6.

    An answer may have been cut between two that tie: the last ones need not be in the other.
    """
    if Determinism(guarantee) is Determinism.BITS:
        assert results == expected
        return
    assert Determinism(guarantee) is Determinism.ORDER, "nothing is guaranteed, so there is nothing to test"
    assert [len(answer) for answer in results] == [len(answer) for answer in expected]
    for answer, other in zip(results, expected, strict=True):
        scores, others = [score for _, score in answer], [score for _, score in other]
        assert scores == pytest.approx(others, rel=0, abs=TIE)
        assert len({key for key, _ in answer}) == len(answer), "no document stands twice"
        known = dict(other)
        for key, score in answer:
            # TIE twice: each of the two that changed places may be off by one.
            assert abs(known.get(key, others[-1]) - score) <= 2 * TIE, f"{key} stands where others belong"
