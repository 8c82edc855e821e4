"""A token that cancels a run, for example when its cost limit is reached, and the message about it.

After a cancellation no further request is sent, and those in flight are awaited. The next invocation of the
command resumes the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from rag_r1.runs.errors import RunError


class CancelToken:
    """Cancels a run when it is called with a reason. `reason` is that of the first call, or None while the
    run continues."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._cancelled = asyncio.Event()

    def __call__(self, reason: str) -> None:
        """Cancel the run for this reason, unless it was cancelled before."""
        if self.reason is None:
            self.reason = reason
            self._cancelled.set()

    async def wait(self) -> None:
        """Wait until the run is cancelled."""
        await self._cancelled.wait()

    async def block_if_cancelled(self) -> None:
        """Return at once while the run continues, and never after its cancellation. The runner then cancels
        the episode, which the next invocation resumes."""
        if self.reason is not None:
            await asyncio.get_running_loop().create_future()


async def unless_cancelled(stop: CancelToken, work: Awaitable[Any]) -> Any:
    """Return the result of work that does not check `stop` itself. Raises RunError with the reason if `stop`
    is cancelled first. The work is then cancelled, and also if this call is cancelled."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RunError(str(stop.reason))
        return task.result()
    finally:
        task.cancel()
        stopped.cancel()


def stop_message(reason: str, missing: str) -> str:
    """Return the message of a stopped run: the reason, what is `missing`, and how to continue."""
    return f"stopped: {reason}\n{missing}: run the same command again to go on"
