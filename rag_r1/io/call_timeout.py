"""Limits the time of an asynchronous call.

A call that blocks the event loop is not ended by its time limit: as long as it blocks, nothing else runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class CallTimeoutError(Exception):
    """A call exceeded its time limit."""


async def with_timeout(limit_s: float | None, call: Awaitable[T]) -> T:
    """Returns the result of a call. Raises CallTimeoutError after `limit_s` seconds (None: no limit), and
    what the call raises.

    The call runs in a task of its own: if it ignores its cancellation, it is abandoned; if it is cancelled
    from elsewhere, that is a failure of the call and not a cancellation of the episode.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(call, loop=loop)
    # Awaiting the task itself would make its cancellation from elsewhere one of this coroutine.
    done_or_late = loop.create_future()
    resolve = partial(_resolve, done_or_late)
    task.add_done_callback(resolve)
    timer = None if limit_s is None else loop.call_later(limit_s, resolve)
    try:
        await done_or_late
    finally:
        if timer is not None:
            timer.cancel()
        if not task.done():
            task.cancel()
            task.add_done_callback(_retrieve_exception)
    if not task.done():
        raise CallTimeoutError(f"no answer within {limit_s:g} s")
    if task.cancelled():
        raise RuntimeError("the call was cancelled from elsewhere")
    return task.result()


def _resolve(future: asyncio.Future[None], task: Any = None) -> None:
    """Wake up who awaits the future. `task` is passed by `add_done_callback`, and is not used."""
    if not future.done():
        future.set_result(None)


def _retrieve_exception(task: asyncio.Future[Any]) -> None:
    """Retrieve the exception of an abandoned call, which asyncio would otherwise log."""
    if not task.cancelled():
        task.exception()
