"""An event loop whose clock jumps to the next timer as soon as nothing else is left to do.

A time limit then ends what hangs and nothing else, however busy the machine is, and costs no time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Does not wait, but moves `now` (seconds) on by what it was to wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None:
            self.now += max(timeout, 0.0)
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, in virtual time. For coroutines without threads and sockets."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main)
