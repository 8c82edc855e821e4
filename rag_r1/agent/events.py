"""The events that an episode emits while it runs.

An observer is a plain function that is called with one Event after the other, in order, while the episode
runs:

    turn      a turn begins; {room}: tokens that may be generated
    tokens    the policy has written; {text, tokens, status}
    calls     tools are about to be called; {calls: [{tool, arguments}]}
    documents the observation is in the context; {calls: [call records]}
    rewrite   turns were taken out of the context; {tokens}: its new length, {removed}: their numbers
    answer    {text}
    failure   {kind, detail}
    ended     the whole record, as `Trajectory.to_dict`

Without an observer no events are made. An observer that raises is logged and not called again, so it cannot
harm the episode.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """Something that happened in a trajectory. `turn` counts from 0; `data` are plain JSON values."""

    trajectory_id: str
    kind: str
    turn: int
    data: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dict(vars(self))


Observer = Callable[[Event], None]


class SafeObserver:
    """Calls an observer until it raises for the first time."""

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
