"""What can be said about an answer: the passages that contain its words, and whether it is right.

A citation says that the words of the answer occur in the passage, one after the other, after the
normalisation with which answers are scored. It does not say that the policy used the passage, or that the
passage supports the answer. Yes and no are not cited. An answer whose words no passage contains is
ungrounded: the policy has not read it in what it was shown. Right and wrong are known for questions with
known answers only, as in the demo's world.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rag_r1.agent import Trajectory
from rag_r1.data.evidence import title_of
from rag_r1.protocols import Document
from rag_r1.rewards.answer_metrics import cover_exact_match, exact_match
from rag_r1.rewards.normalise import normalise

#: Answers that occur in any text.
_NOT_CITED = {"yes", "no"}


def citations(record: Trajectory, golds: Sequence[str] = ()) -> dict[str, Any]:
    """The event `citations`; see the top of the module. `passages` contain the answer, in the order in which
    they were shown: `turn` and `call` count from 0, `rank` from 1. `grounded`: are there any; None if nothing
    can be cited. With `golds`, the right answers, also `verdict`: right or wrong by exact match."""
    passages: list[dict[str, Any]] = []
    citable = bool(record.answer) and normalise(record.answer) not in _NOT_CITED
    if citable:
        for turn, call, rank, document in _documents(record):
            if cover_exact_match(document.contents, [record.answer], ordered=True):
                place = {"turn": turn, "call": call, "rank": rank}
                passages.append({**place, "id": document.id, "title": title_of(document)})
    about = {"answer": record.answer, "passages": passages, "grounded": bool(passages) if citable else None}
    if golds:
        right = exact_match(record.answer, golds)
        about |= {"verdict": "right" if right else "wrong", "golds": list(golds)}
    return about


def _documents(record: Trajectory) -> Iterator[tuple[int, int, int, Document]]:
    for number, turn in enumerate(record.turns):
        for place, call in enumerate(turn.calls):
            for rank, document in enumerate(call.documents or (), 1):
                yield number, place, rank, document
