"""Turns the events of an episode into stream events: reasoning, searches and passages.

reasoning   what the policy writes in a turn, without tags, calls and the answer, in pieces as it grows
searching   {turn, calls: [{tool, arguments}]}
passages    {turn, calls: [{tool, arguments, status, seconds, documents: [{id, title, text, score}]}]}
rewrite     {turn, removed}: turns that were taken out of the context

The event `citations` follows at the end of an episode (citations.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rag_r1.agent import Event
from rag_r1.protocols import Protocol
from rag_r1.serving.citations import call_for_client
from rag_r1.serving.reasoning import StreamingReasoning, turn_reasoning


@dataclass(frozen=True)
class Reasoning:
    """A piece of reasoning. `starts_turn`: it is the first of its turn."""

    text: str
    starts_turn: bool
    kind: Literal["reasoning"] = "reasoning"


@dataclass(frozen=True)
class EpisodeEvent:
    """An event by its name in the API, with its data as the top of the module lists them."""

    kind: Literal["searching", "passages", "rewrite"]
    data: Mapping[str, Any]


StreamEvent = Reasoning | EpisodeEvent


@dataclass
class EventStreamer:
    """An observer of one episode that passes stream events to `show`. `generation_started` is called when a
    generation starts, if the engine reports it, and returns the function for its pieces; text that the engine
    does not report is shown at the end of the turn."""

    protocol: Protocol
    show: Callable[[StreamEvent], None]
    #: The reasoning of this turn that was shown.
    _pieces: list[str] = field(default_factory=list, init=False)

    def __call__(self, event: Event) -> None:
        """Show what an event of the episode adds."""
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
        """The function for the pieces of a generation, which may be another attempt at the same turn: text
        that was shown is not shown again, and nothing is shown of an attempt that differs from it."""
        growing = StreamingReasoning(self.protocol)
        shown = "".join(self._pieces)
        repeated = 0  # characters of `shown` that have come again

        def add_piece(piece: str) -> None:
            nonlocal repeated
            new, remaining = growing.feed(piece), len(shown) - repeated
            repeat, unseen = new[:remaining], new[remaining:]
            if not shown.startswith(repeat, repeated):
                growing.ended = True  # this attempt has other words than the first, which readers have seen
                return
            repeated += len(repeat)
            self._show_reasoning(unseen)

        return add_piece

    def _show_missing(self, text: str) -> None:
        """Show what is not shown yet of the whole turn's reasoning."""
        shown = "".join(self._pieces)
        if text.startswith(shown):
            self._show_reasoning(text[len(shown) :])

    def _show_reasoning(self, new: str) -> None:
        if new:
            self.show(Reasoning(new, starts_turn=not self._pieces))
            self._pieces.append(new)
