"""What can be observed of a running episode.

An observer is a plain function that is given one Event after the other, in order, while the episode runs:

    turn      a turn begins; {room}: tokens that may be generated
    tokens    the policy has written; {text, tokens, status}
    calls     tools are asked; {calls: [{tool, arguments}]}
    documents what the policy is shown; {calls: [call records]}
    rewrite   the context was rewritten; {tokens}: its length
    answer    {text}
    failure   {kind, detail}
    ended     the whole record, as `Trajectory.to_dict`

An episode without an observer makes no events. One that raises is told once in the log and asked no more: it
cannot harm what it looks at.
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
        """As a line of JSON holds it."""
        return dict(vars(self))


Observer = Callable[[Event], None]


class Guarded:
    """An observer that may raise."""

    def __init__(self, observer: Observer):
        self.observer: Observer | None = observer

    def __call__(self, event: Event) -> None:
        """Pass it on."""
        if self.observer is None:
            return
        try:
            self.observer(event)
        except Exception:
            logger.exception("an observer of trajectory %s failed and is asked no more", event.trajectory_id)
            self.observer = None
