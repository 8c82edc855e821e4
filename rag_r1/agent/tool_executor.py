"""Executes the tool calls of an episode and gives each one valid result, whatever the tool does.

Different tools are called concurrently. All calls of a turn to one tool are made in one request, unless the
tool wants each call for itself (`together`, see interfaces.py); then these run concurrently, too.

It is the policy's mistake, and no failure, to call a tool that does not exist, to pass arguments that it does
not accept, or to call it more often than an episode may: the call is refused, and the policy reads why. If
the tool raises, times out or returns something invalid, the calls concerned get a Failure, and only these are
retried. The FailurePolicy, or the tool's own limits (rag_r1/options/tool_limits.py), say how often, and how
long a call may take.

A tool that reads the context of its calls (`reads_context`, see interfaces.py) may send something other than
the policy's arguments; the record of a call has both.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_r1.agent.failures import FailurePolicy, error_line
from rag_r1.agent.interfaces import Tool, call_tool
from rag_r1.agent.trajectory import CallRecord
from rag_r1.agent.validation import checked_results
from rag_r1.io.call_timeout import CallTimeoutError, with_timeout
from rag_r1.options.tool_limits import ToolLimits
from rag_r1.protocols import CachedDocuments, Document, Failure, Refusal, text_result
from rag_r1.protocols.actions import failure_text
from rag_r1.protocols.retriever_query import CallContext, Context

logger = logging.getLogger(__name__)

#: The result of a call as the policy reads it; a refusal is a document.
Result = list[Document] | Failure
#: Most characters that the policy is shown of a tool's name or of the reason for a refusal.
_SHOWN = 200
_NO_LIMITS = ToolLimits()


@dataclass(eq=False, repr=False)
class ToolExecutor:
    """Makes the calls of one episode."""

    tools: Mapping[str, Tool]
    failures: FailurePolicy
    #: Awaited before each retry, with the number of the failed attempt, from 0.
    wait: Callable[[int], Awaitable[None]]
    #: Makes the context of the current turn, for tools that read it.
    context: Callable[[], CallContext] = lambda: CallContext("")
    #: Number of accepted calls of each tool in the episode.
    accepted: Counter[str] = field(default_factory=Counter)

    async def call(self, calls: Sequence[CallRecord]) -> list[Result]:
        """Make the calls of a turn; returns a result for each, in order. Completes the records of the calls
        (status, seconds, what was sent, ...). Raises nothing but its own cancellation."""
        results: dict[int, Result] = {}
        groups: dict[str | int, list[int]] = {}
        for i, call in enumerate(calls):
            if (refusal := await self._refusal(call)) is not None:
                results[i] = refusal
            else:
                group = call.tool if self._setting(call.tool, "together", True) else i
                groups.setdefault(group, []).append(i)
        coroutines = [self._call_tool([calls[i] for i in group]) for group in groups.values()]
        # A single tool, which is the usual case, needs no task.
        by_group = [await coroutines[0]] if len(coroutines) == 1 else await asyncio.gather(*coroutines)
        for group, group_results in zip(groups.values(), by_group, strict=True):
            results.update(zip(group, group_results, strict=True))
        return [results[i] for i in range(len(calls))]

    async def _refusal(self, call: CallRecord) -> Result | None:
        """Return what the policy reads if a call is refused, or a Failure if the check itself fails. Returns
        None for an accepted call, and counts it."""
        tool = self.tools.get(call.tool)
        try:
            if tool is None:
                names = ", ".join(self.tools)
                fault: str | None = f"There is no tool {call.tool[:_SHOWN]!r}. The tools are: {names}."
            else:
                check = getattr(tool, "checked", None)
                limit_s, args = self._timeout_s(call.tool), call.arguments
                fault = tool.fault(args) if check is None else await with_timeout(limit_s, check(args))
            message = None if fault is None else str(fault)[:_SHOWN]
        except Exception as error:
            logger.warning("the arguments of a call could not be checked: %s", error_line(error))
            call.status = "failed"
            return Failure(failure_text(call.tool), "tool", error_line(error))
        max_calls = self._limits(call.tool).max_calls
        if message is None and max_calls is not None and self.accepted[call.tool] >= max_calls:
            message = f"The tool {call.tool} can be called {max_calls} times, and it was."
        if message is None:
            self.accepted[call.tool] += 1
            return None
        call.status = "refused"
        return text_result(call.tool, message)

    def _limits(self, name: str) -> ToolLimits:
        """Return the tool's own limits, or empty ones if it has none that can be read."""
        limits = self._setting(name, "limits", _NO_LIMITS)
        return limits if isinstance(limits, ToolLimits) else _NO_LIMITS

    def _timeout_s(self, name: str) -> float | None:
        """Return the seconds that a call of a tool, or the check of its arguments, may take."""
        timeout_s = self._limits(name).timeout_s
        return self.failures.tool_timeout_s if timeout_s is None else timeout_s

    def _setting(self, name: str, attribute: str, default: Any) -> Any:
        """Return an optional attribute of a tool, or the default if it has none or reading it raises."""
        try:
            return getattr(self.tools.get(name), attribute, default)
        except Exception as error:
            logger.warning("%s of the tool %s could not be read: %s", attribute, name, error_line(error))
            return default

    async def _call_tool(self, calls: Sequence[CallRecord]) -> list[Result]:
        """Make these calls of one tool, and repeat those that fail; returns a result for each. Sets `sent` of
        the calls."""
        started = time.perf_counter()
        name = calls[0].tool
        limits = self._limits(name)
        retries = self.failures.retries if limits.retries is None else limits.retries
        timeout_s = self._timeout_s(name)
        results: dict[int, Result | Refusal] = {}
        pending: Sequence[int] = range(len(calls))
        for attempt in range(retries + 1):
            if attempt:
                await self.wait(attempt - 1)
            context = Context(self.context)
            try:
                response = call_tool(self.tools[name], [calls[i].arguments for i in pending], context)
                answers = await with_timeout(timeout_s, response)
                attempted = checked_results(answers, len(pending), failure_text(name))
            except Exception as error:
                attempted = [_failure(name, error)] * len(pending)
            results.update(zip(pending, attempted, strict=True))
            _set_sent([calls[i] for i in pending], context)
            pending = [i for i in pending if isinstance(results[i], Failure)]
            if not pending:
                break
        seconds = time.perf_counter() - started
        return [self._finish_call(call, results[i], seconds) for i, call in enumerate(calls)]

    def _finish_call(self, call: CallRecord, result: Result | Refusal, seconds: float) -> Result:
        """Return the result as the policy reads it; sets the remaining fields of the call's record."""
        call.seconds = seconds
        if isinstance(result, Refusal):
            self.accepted[call.tool] -= 1
            call.status = "refused"
            return text_result(call.tool, result.reason)
        if isinstance(result, Failure):
            call.status = "failed"
        else:
            index = self._setting(call.tool, "index", "")
            call.index = index[:_SHOWN] if isinstance(index, str) else ""
            call.cached = isinstance(result, CachedDocuments)
        return result


def _failure(name: str, error: Exception) -> Failure:
    """Return the result of a call whose tool raised, and log the error."""
    logger.warning("a call of the tool %s failed: %s", name, error_line(error))
    message = failure_text(name, timed_out=isinstance(error, CallTimeoutError))
    return Failure(message, "tool", error_line(error))


def _set_sent(calls: Sequence[CallRecord], context: Context) -> None:
    """Set `sent` of the calls whose query the tool sent in another form, as it noted in the context. A note
    that is not a text is ignored."""
    for call in calls if isinstance(context.sent, Mapping) else ():
        query = str(call.arguments.get("query"))
        text = context.sent.get(query, query)
        call.sent = {"query": text} if isinstance(text, str) and text != query else None
