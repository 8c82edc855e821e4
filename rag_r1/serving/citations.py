"""Finds the passages that contain an episode's answer, and turns calls and documents into what clients get.

A citation says that the words of the answer occur in the passage, one after the other, after the
normalisation with which answers are scored. It does not say that the policy used the passage, or that the
passage supports the answer. Yes and no are not cited. An answer whose words no passage contains is
ungrounded: the policy has not read it in what it was shown. Right and wrong are known for questions with
known answers only, as in the demo's world.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from rag_r1.agent import Trajectory
from rag_r1.data.evidence import title_of
from rag_r1.protocols import Document
from rag_r1.rewards.answer_metrics import cover_exact_match, exact_match
from rag_r1.rewards.normalise import normalise

#: Answers that occur in any text.
_NOT_CITED = {"yes", "no"}


class CitedPassage(TypedDict):
    """A passage with the words of the answer: `turn` and `call` count from 0, `rank` from 1."""

    turn: int
    call: int
    rank: int
    id: str
    title: str


class Citations(TypedDict):
    """The data of the event `citations`. `grounded`: whether any passage contains the answer; None for an
    answer that cannot be cited (none, yes, no). `verdict`: right or wrong by exact match with `golds`."""

    answer: str | None
    passages: list[CitedPassage]
    grounded: bool | None
    verdict: NotRequired[str]
    golds: NotRequired[list[str]]


def citations(trajectory: Trajectory, golds: Sequence[str] = ()) -> Citations:
    """The passages that contain the answer, in the order in which they were shown. With `golds`, the right
    answers, the result has a verdict."""
    answer = trajectory.answer
    passages: list[CitedPassage] = []
    is_citable = bool(answer) and normalise(answer) not in _NOT_CITED
    if is_citable:
        passages = [
            {"turn": turn, "call": call, "rank": rank, "id": document.id, "title": title_of(document)}
            for turn, call, rank, document in _documents(trajectory)
            if cover_exact_match(document.contents, [answer], ordered=True)
        ]
    grounded = bool(passages) if is_citable else None
    event: Citations = {"answer": answer, "passages": passages, "grounded": grounded}
    if golds:
        event["verdict"] = "right" if exact_match(answer, golds) else "wrong"
        event["golds"] = list(golds)
    return event


def _documents(trajectory: Trajectory) -> Iterator[tuple[int, int, int, Document]]:
    """Yields each document with its turn, call and rank."""
    for turn_index, turn in enumerate(trajectory.turns):
        for call_index, call in enumerate(turn.calls):
            for rank, document in enumerate(call.documents or (), 1):
                yield turn_index, call_index, rank, document


def episode_searches(trajectory: Trajectory) -> list[dict[str, Any]]:
    """All calls of an episode, as in the event `passages`, each with its turn."""
    return [
        {"turn": turn_index, **call_for_client(call.to_dict())}
        for turn_index, turn in enumerate(trajectory.turns)
        for call in turn.calls
    ]


def call_for_client(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call's record (CallRecord.to_dict) as a client sees it: each document with its title and text."""
    return {
        "tool": call["tool"],
        "arguments": call["arguments"],
        "status": call["status"],
        "seconds": round(call["seconds"], 3),
        "documents": [_document_for_client(Document(**document)) for document in call["documents"] or []],
    }


def _document_for_client(document: Document) -> dict[str, Any]:
    """A document with its title and the text below it."""
    title, text = title_of(document), document.text or document.contents
    return {"id": document.id, "title": title, "text": text, "score": document.score}
