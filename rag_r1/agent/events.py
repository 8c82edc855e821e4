"""The events that an episode emits while it runs.

An observer is a plain function that is called with one `Event` after another, in order, while the episode
runs; the chat of `rag-r1 serve` streams its turns in this way. The kinds of events, and their data:

    turn       a turn begins; {room}: number of tokens that may be generated
    tokens     the policy has written a turn; {text, tokens, status}
    calls      tools are about to be called; {calls: [{tool, arguments}]}
    documents  the results of the calls have been added to the context; {calls: [call records]}
    rewrite    turns were removed from the context; {tokens}: its new length, {removed}: indices of the turns
    answer     the policy has answered; {text}
    failure    a failure persisted after all retries; {kind, detail}, with the kinds in failures.py
    ended      the episode has ended; the whole record, as `Trajectory.to_dict` returns it

Without an observer no events are created. An observer that raises is logged and not called again, so it
cannot harm the episode.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

logger = logging.getLogger(__name__)

EventKind = Literal["turn", "tokens", "calls", "documents", "rewrite", "answer", "failure", "ended"]


@dataclass(frozen=True)
class Event:
    """Something that happened in an episode."""

    #: Id of the trajectory.
    trajectory_id: str
    kind: EventKind
    #: Index of the current turn; also 0 before the first turn.
    turn: int
    #: The data of this kind of event, as plain JSON values.
    data: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain JSON values."""
        return dict(vars(self))


Observer = Callable[[Event], None]


class SafeObserver:
    """Wraps an observer: its first error is logged, and it is not called again."""

    def __init__(self, observer: Observer):
        self.observer: Observer | None = observer

    def __call__(self, event: Event) -> None:
        """Pass the event to the observer, unless it has failed before."""
        if self.observer is None:
            return
        try:
            self.observer(event)
        except Exception:
            logger.exception("an observer of trajectory %s failed and is now off", event.trajectory_id)
            self.observer = None
