"""The events that an episode emits while it runs.

An observer is a plain function that is called with one Event after the other, in order, while the episode
runs. The kinds of events, and their data:

    turn       a turn begins; {room}: tokens that may be generated
    tokens     the policy has written; {text, tokens, status}
    calls      tools are about to be called; {calls: [{tool, arguments}]}
    documents  the observation with the results of the calls is in the context; {calls: [call records]}
    rewrite    turns were taken out of the context; {tokens}: its new length, {removed}: their indices
    answer     the policy has answered; {text}
    failure    a failure persisted after all retries; {kind, detail}: kinds in failures.py
    ended      the episode has ended; the whole record, as `Trajectory.to_dict`

Without an observer no events are made. An observer that raises is logged and not called again, so it cannot
harm the episode.
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
    """Something that happened in an episode. `trajectory_id`: id of its record; `turn`: index of the turn, 0
    also before the first; `data`: plain JSON values, by kind as above."""

    trajectory_id: str
    kind: EventKind
    turn: int
    data: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Returns the event as plain JSON values, e.g. for `append_records`."""
        return dict(vars(self))


Observer = Callable[[Event], None]


class SafeObserver:
    """Calls an observer until it raises for the first time, which is logged."""

    def __init__(self, observer: Observer):
        self.observer: Observer | None = observer

    def __call__(self, event: Event) -> None:
        """Pass the event on, unless the observer has failed before."""
        if self.observer is None:
            return
        try:
            self.observer(event)
        except Exception:
            logger.exception("an observer of trajectory %s failed and is now off", event.trajectory_id)
            self.observer = None
