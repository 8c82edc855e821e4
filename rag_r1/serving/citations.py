"""Finds the passages that contain the words of an episode's answer.

A citation states that the words of the answer occur in the passage, one after the other, after the
normalisation with which answers are scored. It does not state that the policy used the passage, or that the
passage supports the answer. The answers yes and no are not cited. An answer is ungrounded if no passage
contains its words, so the policy cannot have read it there. A verdict, right or wrong, is only given for
questions whose answers are known, as in the demo's world.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NotRequired, TypedDict

from rag_r1.agent import Trajectory
from rag_r1.data.evidence import title_of
from rag_r1.protocols import Document
from rag_r1.rewards.answer_metrics import cover_exact_match, exact_match
from rag_r1.rewards.normalise import normalise

#: Answers that are not cited, since they have no word, or almost any text contains them.
_NOT_CITED = {"", "yes", "no"}


class CitedPassage(TypedDict):
    """A passage that contains the words of the answer."""

    #: The index of the turn, from 0.
    turn: int
    #: The index of the call within its turn, from 0.
    call: int
    #: The rank in the result of the call, from 1.
    rank: int
    id: str
    title: str


class Citations(TypedDict):
    """The data of the event `citations`."""

    answer: str | None
    passages: list[CitedPassage]
    #: Whether any passage contains the answer; None for one that cannot be cited (none, no word, yes, no).
    grounded: bool | None
    #: The result of exact match with `golds`.
    verdict: NotRequired[Literal["right", "wrong"]]
    #: The accepted answers, if they are known.
    golds: NotRequired[list[str]]


def citations(trajectory: Trajectory, golds: Sequence[str] = ()) -> Citations:
    """Return the passages that contain an episode's answer, in the order in which they were shown. With
    `golds`, the accepted answers, the result also has a verdict."""
    answer = trajectory.answer
    has_word = answer is not None and any(map(str.isalnum, answer))
    is_citable = has_word and normalise(answer) not in _NOT_CITED
    passages: list[CitedPassage] = [
        {"turn": turn, "call": call, "rank": rank, "id": document.id, "title": title_of(document)}
        for turn, call, rank, document in (_documents(trajectory) if is_citable else ())
        if cover_exact_match(document.contents, [answer], ordered=True)
    ]
    grounded = bool(passages) if is_citable else None
    event: Citations = {"answer": answer, "passages": passages, "grounded": grounded}
    if golds:
        event["verdict"] = "right" if exact_match(answer, golds) else "wrong"
        event["golds"] = list(golds)
    return event


def _documents(trajectory: Trajectory) -> Iterator[tuple[int, int, int, Document]]:
    """Yield each document that was shown, as (index of its turn, index of its call, rank, document)."""
    for turn_index, turn in enumerate(trajectory.turns):
        for call_index, call in enumerate(turn.calls):
            for rank, document in enumerate(call.documents or (), 1):
                yield turn_index, call_index, rank, document
