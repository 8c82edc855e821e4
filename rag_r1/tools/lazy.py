"""A lazy value: loaded once, in a thread, when a tool first needs it.

Tools are made at the start of a run and in its preflight, and must not block there. All calls wait for the
same loading; if it fails, these calls fail, and the next one tries again. A caller that is cancelled does not
cancel it for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class LazyValue(Generic[T]):
    """What `load` returns; bound to the event loop in which it is first wanted."""

    def __init__(self, load: Callable[[], T]):
        self._load = load
        self._loading: asyncio.Future[T] | None = None

    async def get(self) -> T:
        """The loaded value. Raises what `load` raises."""
        if self._loading is None or _failed(self._loading):
            self._loading = asyncio.ensure_future(asyncio.to_thread(self._load))
        return await asyncio.shield(self._loading)


def _failed(loading: asyncio.Future) -> bool:
    return loading.done() and (loading.cancelled() or loading.exception() is not None)
