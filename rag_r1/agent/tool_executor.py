"""Executes the tool calls of a turn and gives each one valid result, whatever the tool does.

All calls of a turn to one tool are made together, or side by side if the tool wants them one by one
(`together`, see interfaces.py), and those to several tools concurrently. A call to a tool that does not
exist, with arguments that it does not accept, or beyond the calls that an episode may make of it, is the
policy's mistake: the policy reads what is wrong, and this is not a failure. If the tool itself raises, times
out or returns something invalid, that is a Failure of the calls concerned; only these are retried. How often,
and how long a call may take, is set by the FailurePolicy, or by the tool's own limits
(rag_r1/options/tool_limits.py).

A tool that reads the context of its calls (`in_context`, see interfaces.py) is called with what it makes of
their arguments; the record of a call keeps both.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rag_r1.agent.failures import FailurePolicy
from rag_r1.agent.interfaces import Tool
from rag_r1.agent.trajectory import CallRecord
from rag_r1.agent.validation import CallTimeoutError, checked_results, error_line, failure_text, with_timeout
from rag_r1.options.tool_limits import ToolLimits
from rag_r1.protocols import Document, Failure, Refusal, text_result
from rag_r1.protocols.retriever_query import CallContext, Context

logger = logging.getLogger(__name__)

Result = list[Document] | Failure
#: Characters of a tool's name or of a fault that are shown to the policy.
_SHOWN = 200
_NO_LIMITS = ToolLimits()


class ToolExecutor:
    """Makes the calls of an episode. `wait(attempt)` is awaited before each retry. `called` counts the calls
    of each tool that it accepted, over all turns of the episode. `context` is asked for the context of the
    turn if a tool reads it."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        failures: FailurePolicy,
        wait: Callable[[int], Awaitable[None]],
        called: Counter[str] | None = None,
        context: Context = lambda: CallContext(""),
    ):
        self.tools, self.failures, self.wait, self.context = tools, failures, wait, context
        self.called: Counter[str] = Counter() if called is None else called

    async def call(self, calls: Sequence[CallRecord]) -> list[Result]:
        """A result for each call, in order; their `status` and `seconds` are set. Raises nothing but its own
        cancellation."""
        results: list[Result | None] = [None] * len(calls)
        groups: dict[tuple[str, int], list[int]] = {}
        for i, call in enumerate(calls):
            results[i] = await self._refused(call)
            if results[i] is None:
                together = self._own(call.tool, "together", True)
                groups.setdefault((call.tool, -1 if together else i), []).append(i)
        made = [(name, places) for (name, _), places in groups.items()]
        if len(made) == 1:  # the usual case: no task needed
            ((name, places),) = made
            found = [await self._call_tool(name, [calls[i] for i in places])]
        else:
            found = await asyncio.gather(
                *(self._call_tool(name, [calls[i] for i in places]) for name, places in made)
            )
        for (_, places), answers in zip(made, found, strict=True):
            for i, answer in zip(places, answers, strict=True):
                results[i] = self._settled(calls[i], answer)
        return [result for result in results if result is not None]

    def _settled(self, call: CallRecord, answer: Result | Refusal) -> Result:
        """What the policy reads, with the status of the call."""
        if isinstance(answer, Refusal):
            self.called[call.tool] -= 1
            call.status = "refused"
            return text_result(call.tool, answer.reason)
        if isinstance(answer, Failure):
            call.status = "failed"
        return answer

    async def _refused(self, call: CallRecord) -> Result | None:
        """What the policy reads instead of a result if this call is not possible; None if it is."""
        tool = self.tools.get(call.tool)
        try:
            if tool is None:
                known = ", ".join(self.tools)
                fault: str | None = f"There is no tool {call.tool[:_SHOWN]!r}. The tools are: {known}."
            else:
                checked = self._own(call.tool, "checked", None)
                fault = tool.fault(call.arguments) if checked is None else await checked(call.arguments)
            shown = None if fault is None else str(fault)[:_SHOWN]
            most = self._limits(call.tool).max_calls
        except Exception as error:
            logger.warning("the arguments of a call could not be checked: %s", error_line(error))
            call.status = "failed"
            return Failure(failure_text(call.tool), "tool", error_line(error))
        if shown is None and most is not None and self.called[call.tool] >= most:
            shown = f"The tool {call.tool} can be called {most} times, and it was."
        if shown is None:
            self.called[call.tool] += 1
            return None
        call.status = "refused"
        return text_result(call.tool, shown)

    def _limits(self, name: str) -> ToolLimits:
        limits = self._own(name, "limits", _NO_LIMITS)
        return limits if isinstance(limits, ToolLimits) else _NO_LIMITS

    def _own(self, name: str, attribute: str, default: Any) -> Any:
        """An attribute that a tool may have; the default if it has none, or if reading it raises."""
        try:
            return getattr(self.tools.get(name), attribute, default)
        except Exception as error:
            logger.warning("%s of the tool %s could not be read: %s", attribute, name, error_line(error))
            return default

    async def _call_tool(self, name: str, calls: Sequence[CallRecord]) -> list[Result | Refusal]:
        """One result for each call; only failed calls are retried."""
        started = time.perf_counter()
        limits = self._limits(name)
        results = await self._ask(name, calls, limits)
        for attempt in range(self.failures.retries if limits.retries is None else limits.retries):
            failed = [i for i, result in enumerate(results) if isinstance(result, Failure)]
            if not failed:
                break
            await self.wait(attempt)
            again = await self._ask(name, [calls[i] for i in failed], limits)
            for i, result in zip(failed, again, strict=True):
                results[i] = result
        seconds = time.perf_counter() - started
        for call in calls:
            call.seconds = seconds
        return results

    async def _ask(
        self, name: str, calls: Sequence[CallRecord], limits: ToolLimits
    ) -> list[Result | Refusal]:
        seconds = self.failures.tool_timeout_s if limits.timeout_s is None else limits.timeout_s
        try:
            answers = await with_timeout(seconds, partial(self._answers, name, calls))
            return checked_results(answers, len(calls), failure_text(name))
        except Exception as error:
            logger.warning("a call of the tool %s failed: %s", name, error_line(error))
            shown = failure_text(name, late=isinstance(error, CallTimeoutError))
            return [Failure(shown, "tool", error_line(error))] * len(calls)

    async def _answers(self, name: str, calls: Sequence[CallRecord]) -> Any:
        """What the tool returns. Raises what it raises, and ValueError if its `in_context` is not aligned."""
        arguments: Sequence[Mapping[str, Any]] = [call.arguments for call in calls]
        if (in_context := self._own(name, "in_context", None)) is not None:
            sent = await in_context(arguments, self.context)
            if isinstance(sent, Failure):
                return [sent] * len(calls)
            arguments = [dict(one) for one in sent]
            if len(arguments) != len(calls):
                raise ValueError(f"{len(arguments)} arguments in context for {len(calls)} calls")
            for call, one in zip(calls, arguments, strict=True):
                call.sent = None if one == call.arguments else dict(one)
        return await self.tools[name].call(arguments)
