"""A token that ends a run before its last question.

Once it is cancelled, nothing more is sent, what is under way comes back, and the next start goes on from
there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from rag_r1.runs.errors import RunError


class CancelToken:
    """Ends a run. `reason`: that of the first call; None while the run goes on."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._cancelled = asyncio.Event()

    def __call__(self, reason: str) -> None:
        """Let nothing more begin."""
        if self.reason is None:
            self.reason = reason
            self._cancelled.set()

    async def wait(self) -> None:
        """Return when the run is to end."""
        await self._cancelled.wait()

    async def block_if_cancelled(self) -> None:
        """Return at once while the run goes on; once it is to end, never (the runner cancels the episode,
        which is then played to its end by the next start)."""
        if self.reason is not None:
            await asyncio.get_running_loop().create_future()


async def unless_cancelled(stop: CancelToken, work: Awaitable[Any]) -> Any:
    """The result of work that does not watch `stop` itself. Raises RunError with the reason if `stop` is
    cancelled first; the work is then cancelled, as it is when this call is."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RunError(str(stop.reason))
        return task.result()
    finally:
        task.cancel()
        stopped.cancel()
