"""A lazy value, which is loaded once, in a thread, when a tool first needs it.

Tools are created in the preflight and, in a run, in the event loop; neither must wait for the loading. All
calls wait for the same loading. If it fails, these calls fail, and the next one tries again. If a caller is
cancelled, the loading continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class LazyValue(Generic[Value]):
    """Holds the result of `load`, which the first `get` calls; bound to the event loop of that call."""

    def __init__(self, load: Callable[[], Value]):
        self._load = load
        self._loading: asyncio.Future[Value] | None = None

    async def get(self) -> Value:
        """Return the value; the first call loads it. Raises what `load` raises."""
        if self._loading is None or has_failed(self._loading):
            self._loading = asyncio.ensure_future(asyncio.to_thread(self._load))
        return await asyncio.shield(self._loading)


def has_failed(future: asyncio.Future[Any]) -> bool:
    """Return whether a future was cancelled or ended with an exception."""
    return future.done() and (future.cancelled() or future.exception() is not None)
