"""Turns the events of an episode into stream events: reasoning, searches, passages and citations.

reasoning   what the policy writes in a turn, without tags, calls and the answer, in pieces as it grows
searching   {turn, calls: [{tool, arguments}]}
passages    {turn, calls: [{tool, arguments, status, seconds, documents: [{id, title, text, score}]}]}
rewrite     {turn, removed}: turns that were taken out of the context
citations   {answer, passages: [{turn, call, rank, id, title}], grounded, verdict, golds}

A citation says that the words of the answer occur in the passage, one after the other, after the
normalisation with which answers are scored. It does not say that the policy used the passage, or that the
passage supports the answer. Yes and no are not cited. An answer whose words no passage contains is
ungrounded: the policy has not read it in what it was shown. Right and wrong are known for questions with
known answers only, as in the demo's world.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_r1.agent import Event, Trajectory
from rag_r1.data.evidence import title_of
from rag_r1.protocols import Document, Protocol
from rag_r1.rewards.answer_metrics import cover_exact_match, exact_match
from rag_r1.rewards.normalise import normalise

#: Answers that occur in any text.
_NOT_CITED = {"yes", "no"}
#: Roles of blocks whose text is no reasoning.
_ACTIONS = ("call", "answer")


@dataclass(frozen=True)
class StreamEvent:
    """One thing to show: reasoning has `text`, and whether it `starts_turn`; everything else has
    `data`."""

    kind: str
    text: str = ""
    starts_turn: bool = False
    data: dict[str, Any] = field(default_factory=dict)


class EventStreamer:
    """An observer of one episode that passes on what is to be shown. `generation_started` is called when a
    generation starts, if the engine reports it, and returns the function for its pieces; text that the engine
    does not report is shown at the end of the turn."""

    def __init__(self, protocol: Protocol, show: Callable[[StreamEvent], None]):
        self.protocol, self.show = protocol, show
        self._pieces: list[str] = []  # of this turn's reasoning, in pieces

    def __call__(self, event: Event) -> None:
        turn, data = event.turn, event.data
        if event.kind == "turn":
            self._pieces = []
        elif event.kind == "tokens":
            self._show_missing(turn_reasoning(data["text"], self.protocol))
        elif event.kind == "calls":
            self.show(StreamEvent("searching", data={"turn": turn, "calls": data["calls"]}))
        elif event.kind == "documents":
            calls = [call_for_client(call) for call in data["calls"]]
            self.show(StreamEvent("passages", data={"turn": turn, "calls": calls}))
        elif event.kind == "rewrite":
            self.show(StreamEvent("rewrite", data={"turn": turn, "removed": data["removed"]}))

    def generation_started(self) -> Callable[[str], None]:
        """A generation starts, perhaps a second attempt at the same turn. Text already shown is not shown
        again; if the new attempt differs from it, the rest is not shown."""
        growing, text_sent = StreamingReasoning(self.protocol), "".join(self._pieces)
        repeated = 0  # characters of `text_sent` that have come again

        def add_piece(piece: str) -> None:
            nonlocal repeated
            new, remaining = growing.feed(piece), len(text_sent) - repeated
            repeat, unseen = new[:remaining], new[remaining:]
            if not text_sent.startswith(repeat, repeated):
                growing.ended = True  # it says something else, which is not shown
                return
            repeated += len(repeat)
            self._show_reasoning(unseen)

        return add_piece

    def _show_missing(self, text: str) -> None:
        """The reasoning of the whole turn."""
        text_sent = "".join(self._pieces)
        if text.startswith(text_sent):
            self._show_reasoning(text[len(text_sent) :])

    def _show_reasoning(self, new: str) -> None:
        if new:
            self.show(StreamEvent("reasoning", new, starts_turn=not self._pieces))
            self._pieces.append(new)


def turn_reasoning(text: str, protocol: Protocol) -> str:
    """The text of a turn beside its call or answer, without the protocol's tags."""
    ends = [(end, i) for i, block in enumerate(protocol.acting) if (end := text.find(block.close)) >= 0]
    if ends:
        end, i = min(ends)
        block = protocol.acting[i]
        start = text.rfind(block.open, 0, end)
        text = text[: start if block.role in _ACTIONS and start >= 0 else end]
    return _without_tags(text, protocol)


class StreamingReasoning:
    """`turn_reasoning` for a turn that is still growing: emits text up to the call or answer, and holds back
    what may yet become a tag or trailing white space. Each character is looked at about once, however long
    the turn is.

    `ended`: nothing more comes."""

    def __init__(self, protocol: Protocol):
        tags = _tags(protocol)
        self._tag = re.compile("|".join(map(re.escape, tags)))
        self._tag_starts = {tag[:length] for tag in tags for length in range(1, len(tag) + 1)}
        self._longest = max(map(len, tags))
        self._acts = {block.open for block in protocol.acting if block.role in _ACTIONS}
        self._rest = ""  # may become a tag
        self._space: list[str] = []  # may be at the end
        self._has_text = self.ended = False

    def feed(self, piece: str) -> str:
        """What the next piece of the turn adds to its reasoning."""
        if self.ended:
            return ""
        text = self._rest + piece
        end = len(text) - next(
            (n for n in range(min(len(text), self._longest), 0, -1) if text[-n:] in self._tag_starts), 0
        )
        parts, position = [], 0
        for tag in self._tag.finditer(text):
            if tag.start() >= end:
                break
            parts.append(text[position : tag.start()])
            position = tag.end()
            if tag[0] in self._acts:
                self.ended = True
                return self._without_outer_space("".join(parts))
        parts.append(text[position:end])
        self._rest = text[max(position, end) :]
        return self._without_outer_space("".join(parts))

    def _without_outer_space(self, text: str) -> str:
        visible = text.rstrip()
        space = text[len(visible) :]
        if not visible:
            if self._has_text:
                self._space.append(space)
            return ""
        visible = "".join(self._space) + visible if self._has_text else visible.lstrip()
        self._space, self._has_text = [space], True
        return visible


def _tags(protocol: Protocol) -> list[str]:
    return [tag for block in protocol.blocks for tag in (block.open, block.close) if tag]


def _without_tags(text: str, protocol: Protocol) -> str:
    return re.sub("|".join(map(re.escape, _tags(protocol))), "", text).strip()


def call_for_client(call: dict[str, Any]) -> dict[str, Any]:
    """A call's record (CallRecord.to_dict) as a client sees it: each document with its title and text."""
    documents = [document_for_client(Document(**document)) for document in call["documents"] or []]
    fields = {name: call[name] for name in ("tool", "arguments", "status")}
    return {**fields, "seconds": round(call["seconds"], 3), "documents": documents}


def document_for_client(document: Document) -> dict[str, Any]:
    """A document with its title and the text below it."""
    title, text = title_of(document), document.text or document.contents
    return {"id": document.id, "title": title, "text": text, "score": document.score}


def episode_searches(record: Trajectory) -> list[dict[str, Any]]:
    """All calls of an episode, as in the event `passages`."""
    return [
        {"turn": number, **call_for_client(call.to_dict())}
        for number, turn in enumerate(record.turns)
        for call in turn.calls
    ]


def citations(record: Trajectory, golds: Sequence[str] = ()) -> dict[str, Any]:
    """The event `citations`; see the top of the module. `passages` contain the answer, in the order in which
    they were shown: `turn` and `call` count from 0, `rank` from 1. `grounded`: are there any; None if nothing
    can be cited. With `golds`, the right answers, also `verdict`: right or wrong by exact match."""
    passages: list[dict[str, Any]] = []
    citable = bool(record.answer) and normalise(record.answer) not in _NOT_CITED
    if citable:
        for turn, call, rank, document in _documents(record):
            if cover_exact_match(document.contents, [record.answer], ordered=True):
                position = {"turn": turn, "call": call, "rank": rank}
                passages.append({**position, "id": document.id, "title": title_of(document)})
    event = {"answer": record.answer, "passages": passages, "grounded": bool(passages) if citable else None}
    if golds:
        right = exact_match(record.answer, golds)
        event |= {"verdict": "right" if right else "wrong", "golds": list(golds)}
    return event


def _documents(record: Trajectory) -> Iterator[tuple[int, int, int, Document]]:
    for number, turn in enumerate(record.turns):
        for index, call in enumerate(turn.calls):
            for rank, document in enumerate(call.documents or (), 1):
                yield number, index, rank, document
