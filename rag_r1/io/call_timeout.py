"""Limits the time of an asynchronous call.

The limit cannot end a call that blocks the event loop, since nothing else runs until it returns.
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
    """Return the result of a call. Raises CallTimeoutError after `limit_s` seconds (None for no limit), and
    whatever the call raises.

    The call runs in a separate task. If it ignores its cancellation, it is abandoned. If something else
    cancels it, this is a failure of the call (RuntimeError) and not a cancellation of the caller.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(call, loop=loop)
    # If the task were awaited itself, cancelling it from elsewhere would also cancel this coroutine.
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
    """Wake up the coroutine that awaits the future. `add_done_callback` passes `task`, which is not used."""
    if not future.done():
        future.set_result(None)


def _retrieve_exception(task: asyncio.Future[Any]) -> None:
    """Retrieve the exception of an abandoned call, which asyncio would log otherwise."""
    if not task.cancelled():
        task.exception()
