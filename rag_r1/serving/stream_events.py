"""Converts the events of an episode to the events of a chat's stream: reasoning, searches and passages.

    reasoning   a piece of what the policy writes in a turn, without tags, calls and the answer
    searching   {turn, calls: [{tool, arguments}]}
    passages    {turn, calls: [{tool, arguments, status, seconds, documents: [{id, title, text, score}]}]}
    rewrite     {turn, removed}, where `removed` are turns that were removed from the context

`EventStreamer` is the observer of one episode. The event `citations` follows at the end (citations.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rag_r1.agent import Event
from rag_r1.protocols import Protocol
from rag_r1.serving.reasoning import StreamingReasoning, turn_reasoning
from rag_r1.serving.wire import call_for_client


@dataclass(frozen=True)
class Reasoning:
    """A piece of reasoning."""

    text: str
    #: Whether it is the first piece of its turn.
    starts_turn: bool
    kind: Literal["reasoning"] = "reasoning"


@dataclass(frozen=True)
class EpisodeEvent:
    """An event with its name in the API and its data, which the top of this module describes."""

    kind: Literal["searching", "passages", "rewrite"]
    data: Mapping[str, Any]


StreamEvent = Reasoning | EpisodeEvent


@dataclass
class EventStreamer:
    """An observer of one episode, which converts its events to stream events.

    An engine that streams calls `generation_started` for each generation, and the function that it returns
    for each piece. Reasoning that was not streamed is shown at the end of its turn."""

    protocol: Protocol
    #: Called with each stream event.
    show: Callable[[StreamEvent], None]
    #: The pieces of reasoning of the current turn that were shown.
    _pieces: list[str] = field(default_factory=list, init=False)

    def __call__(self, event: Event) -> None:
        """Show an event of the episode."""
        turn, data = event.turn, event.data
        if event.kind == "turn":
            self._pieces = []
        elif event.kind == "tokens":
            self._show_missing(turn_reasoning(data["text"], self.protocol))
        elif event.kind == "calls":
            self.show(EpisodeEvent("searching", {"turn": turn, "calls": data["calls"]}))
        elif event.kind == "documents":
            calls = [call_for_client(call) for call in data["calls"]]
            self.show(EpisodeEvent("passages", {"turn": turn, "calls": calls}))
        elif event.kind == "rewrite":
            self.show(EpisodeEvent("rewrite", {"turn": turn, "removed": data["removed"]}))

    def generation_started(self) -> Callable[[str], None]:
        """Return the function to call with each piece of a generation.

        A generation may be another attempt at the same turn. Text that was shown before is then skipped, and
        if the attempt differs from that text, nothing of it is shown."""
        reasoning = StreamingReasoning(self.protocol)
        shown = "".join(self._pieces)
        repeated = 0  # the number of characters of `shown` that this attempt has repeated

        def add_piece(piece: str) -> None:
            """Show the new reasoning in a piece of the generation."""
            nonlocal repeated
            new, remaining = reasoning.feed(piece), len(shown) - repeated
            repeat, unseen = new[:remaining], new[remaining:]
            if not shown.startswith(repeat, repeated):
                reasoning.ended = True  # readers have seen the text of another attempt
                return
            repeated += len(repeat)
            self._show_reasoning(unseen)

        return add_piece

    def _show_missing(self, text: str) -> None:
        """Show the part of a whole turn's reasoning that was not shown yet."""
        shown = "".join(self._pieces)
        if text.startswith(shown):
            self._show_reasoning(text[len(shown) :])

    def _show_reasoning(self, new: str) -> None:
        """Show a new piece of reasoning, unless it is empty."""
        if new:
            self.show(Reasoning(new, starts_turn=not self._pieces))
            self._pieces.append(new)
