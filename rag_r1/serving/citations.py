"""The citations of an answer: the passages that contain its words.

A citation says that the words of the answer occur in the passage, one after the other, after the
normalisation with which answers are scored. It does not say that the policy used the passage, or that the
passage supports the answer. Yes and no are not cited.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rag_r1.agent import Trajectory
from rag_r1.data.evidence import title_of
from rag_r1.protocols import Document
from rag_r1.rewards.answer_metrics import cover_exact_match
from rag_r1.rewards.normalise import normalise

#: Answers that occur in any text.
_NOT_CITED = {"yes", "no"}


def citations(record: Trajectory) -> dict[str, Any]:
    """The passages that contain the answer, in the order in which they were shown; see the top of the
    module. `turn` and `call` count from 0, `rank` from 1."""
    passages = []
    if record.answer and normalise(record.answer) not in _NOT_CITED:
        for turn, call, rank, document in _documents(record):
            if cover_exact_match(document.contents, [record.answer], ordered=True):
                place = {"turn": turn, "call": call, "rank": rank}
                passages.append({**place, "id": document.id, "title": title_of(document)})
    return {"answer": record.answer, "passages": passages}


def _documents(record: Trajectory) -> Iterator[tuple[int, int, int, Document]]:
    for number, turn in enumerate(record.turns):
        for place, call in enumerate(turn.calls):
            for rank, document in enumerate(call.documents or (), 1):
                yield number, place, rank, document
