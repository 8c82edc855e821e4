"""What a client sees of an episode: its events (rag_r1/agent/events.py) as reasoning, searches, passages and
citations.

    reasoning   what the policy writes in a turn, without tags, calls and the answer, in pieces as it grows
    searching   {turn, calls: [{tool, arguments}]}
    passages    {turn, calls: [{tool, arguments, status, seconds, documents: [{id, title, text, score}]}]}
    rewrite     {turn, removed}: turns that were taken out of the context
    citations   {answer, passages: [{turn, call, rank, id, title}]}: passages that contain the answer

A citation says that the words of the answer occur in the passage, one after the other, after the
normalisation with which answers are scored. It does not say that the policy used the passage, or that the
passage supports the answer. Yes and no are not cited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rag_r1.agent import Event, Trajectory
from rag_r1.protocols import Document, Protocol
from rag_r1.rewards.answer_metrics import cover_exact_match
from rag_r1.rewards.normalise import normalise
from rag_r1.supporting import title_of

#: Answers that occur in any text.
_NOT_CITED = {"yes", "no"}
#: Roles of blocks whose text is no reasoning.
_ACTIONS = ("call", "answer")


@dataclass(frozen=True)
class Shown:
    """One thing to show: reasoning has `text`, and whether a turn `begins` with it; everything else has
    `data`."""

    kind: str
    text: str = ""
    begins: bool = False
    data: dict[str, Any] = field(default_factory=dict)


class Shower:
    """An observer of one episode that passes on what is to be shown. `grown` is called with the text of the
    turn so far, if the engine tells it; whatever it does not, the end of the turn shows."""

    def __init__(self, protocol: Protocol, show: Callable[[Shown], None]):
        self.protocol, self.show = protocol, show
        self._told = ""  # of this turn's reasoning

    def __call__(self, event: Event) -> None:
        turn, data = event.turn, event.data
        if event.kind == "turn":
            self._told = ""
        elif event.kind == "tokens":
            self._tell(reasoning(data["text"], self.protocol))
        elif event.kind == "calls":
            self.show(Shown("searching", data={"turn": turn, "calls": data["calls"]}))
        elif event.kind == "documents":
            calls = [shown_call(call) for call in data["calls"]]
            self.show(Shown("passages", data={"turn": turn, "calls": calls}))
        elif event.kind == "rewrite":
            self.show(Shown("rewrite", data={"turn": turn, "removed": data["removed"]}))

    def grown(self, text: str) -> None:
        """The turn's text so far."""
        self._tell(growing_reasoning(text, self.protocol))

    def _tell(self, text: str) -> None:
        """Show what is new. What was shown stays, also if the engine has begun the turn anew."""
        if text.startswith(self._told) and len(text) > len(self._told):
            self.show(Shown("reasoning", text[len(self._told) :], begins=not self._told))
            self._told = text


def reasoning(text: str, protocol: Protocol) -> str:
    """What a turn says beside its call or answer, without the protocol's tags."""
    ends = [(end, i) for i, block in enumerate(protocol.acting) if (end := text.find(block.close)) >= 0]
    if ends:
        end, i = min(ends)
        block = protocol.acting[i]
        start = text.rfind(block.open, 0, end)
        text = text[: start if block.role in _ACTIONS and start >= 0 else end]
    return _without_tags(text, protocol)


def growing_reasoning(text: str, protocol: Protocol) -> str:
    """The same of a turn that is not complete: up to its call or answer, and without an end that may become
    a tag."""
    opened = (text.find(block.open) for block in protocol.acting if block.role in _ACTIONS)
    text = text[: min((at for at in opened if at >= 0), default=len(text))]
    tags = _tags(protocol)
    for length in range(min(len(text), max(map(len, tags)) - 1), 0, -1):
        if any(tag.startswith(text[-length:]) for tag in tags):
            text = text[:-length]
            break
    return _without_tags(text, protocol)


def _tags(protocol: Protocol) -> list[str]:
    return [tag for block in protocol.blocks for tag in (block.open, block.close) if tag]


def _without_tags(text: str, protocol: Protocol) -> str:
    return re.sub("|".join(map(re.escape, _tags(protocol))), "", text).strip()


def shown_call(call: dict[str, Any]) -> dict[str, Any]:
    """A call's record (CallRecord.to_dict) as a client sees it: each document with its title and text."""
    documents = [shown_document(Document(**document)) for document in call["documents"] or []]
    kept = {name: call[name] for name in ("tool", "arguments", "status")}
    return {**kept, "seconds": round(call["seconds"], 3), "documents": documents}


def shown_document(document: Document) -> dict[str, Any]:
    """A document with its title and the text below it."""
    title, text = title_of(document), document.text or document.contents
    return {"id": document.id, "title": title, "text": text, "score": document.score}


def citations(record: Trajectory) -> dict[str, Any]:
    """The passages that contain the answer, in the order in which they were shown; see the top of the
    module. `turn` and `call` count from 0, `rank` from 1."""
    found = []
    if record.answer and normalise(record.answer) not in _NOT_CITED:
        for turn, call, rank, document in _documents(record):
            if cover_exact_match(document.contents, [record.answer], ordered=True):
                place = {"turn": turn, "call": call, "rank": rank}
                found.append({**place, "id": document.id, "title": title_of(document)})
    return {"answer": record.answer, "passages": found}


def searches(record: Trajectory) -> list[dict[str, Any]]:
    """All calls of an episode, as in the event `passages`."""
    return [
        {"turn": number, **shown_call(call.to_dict())}
        for number, turn in enumerate(record.turns)
        for call in turn.calls
    ]


def _documents(record: Trajectory) -> Iterator[tuple[int, int, int, Document]]:
    for number, turn in enumerate(record.turns):
        for place, call in enumerate(turn.calls):
            for rank, document in enumerate(call.documents or (), 1):
                yield number, place, rank, document
