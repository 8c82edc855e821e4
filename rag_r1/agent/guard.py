"""The guard around every tool: whatever a tool does, each call of a turn gets one valid result.

All calls of a turn to one tool are made together, those to several tools concurrently. A call to a tool that
does not exist, or with arguments that it does not accept, is the policy's mistake: the policy reads what is
wrong, and this is not a failure. If the tool itself raises, times out or returns something invalid, that is a
Failure of the calls concerned; only these are retried, as often as the FailurePolicy allows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rag_r1.agent.boundary import Late, checked_results, no_answer, reason, within
from rag_r1.agent.failures import FailurePolicy
from rag_r1.agent.parts import Tool
from rag_r1.agent.trajectory import CallRecord
from rag_r1.protocols import Document, Failure, in_words

logger = logging.getLogger(__name__)

Result = list[Document] | Failure
#: Characters of a tool's name or of a fault that are shown to the policy.
_SHOWN = 200


class ToolGuard:
    """Makes the calls of an episode. `wait(attempt)` is awaited before each retry."""

    def __init__(
        self, tools: Mapping[str, Tool], failures: FailurePolicy, wait: Callable[[int], Awaitable[None]]
    ):
        self.tools, self.failures, self.wait = tools, failures, wait

    async def call(self, calls: Sequence[CallRecord]) -> list[Result]:
        """A result for each call, in order; their `status` and `seconds` are set. Raises nothing but its own
        cancellation."""
        results: list[Result | None] = [None] * len(calls)
        by_tool: dict[str, list[int]] = {}
        for i, call in enumerate(calls):
            results[i] = self._refused(call)
            if results[i] is None:
                by_tool.setdefault(call.tool, []).append(i)
        if len(by_tool) == 1:  # the usual case: no task needed
            ((name, places),) = by_tool.items()
            found = [await self._call_tool(name, [calls[i] for i in places])]
        else:
            found = await asyncio.gather(
                *(self._call_tool(name, [calls[i] for i in places]) for name, places in by_tool.items())
            )
        for places, answers in zip(by_tool.values(), found, strict=True):
            for i, answer in zip(places, answers, strict=True):
                results[i] = answer
                if isinstance(answer, Failure):
                    calls[i].status = "failed"
        return [result for result in results if result is not None]

    def _refused(self, call: CallRecord) -> Result | None:
        """What the policy reads instead of a result if this call is not possible; None if it is."""
        tool = self.tools.get(call.tool)
        try:
            if tool is None:
                known = ", ".join(self.tools)
                fault: str | None = f"There is no tool {call.tool[:_SHOWN]!r}. The tools are: {known}."
            else:
                fault = tool.fault(call.arguments)
            shown = None if fault is None else str(fault)[:_SHOWN]
        except Exception as error:
            logger.warning("the arguments of a call could not be checked: %s", reason(error))
            call.status = "failed"
            return Failure(no_answer(call.tool), "tool", reason(error))
        if shown is None:
            return None
        call.status = "refused"
        return in_words(call.tool, shown)

    async def _call_tool(self, name: str, calls: Sequence[CallRecord]) -> list[Result]:
        """One result for each call; only failed calls are retried."""
        started = time.perf_counter()
        results = await self._ask(name, [call.arguments for call in calls])
        for attempt in range(self.failures.retries):
            failed = [i for i, result in enumerate(results) if isinstance(result, Failure)]
            if not failed:
                break
            await self.wait(attempt)
            again = await self._ask(name, [calls[i].arguments for i in failed])
            for i, result in zip(failed, again, strict=True):
                results[i] = result
        seconds = time.perf_counter() - started
        for call in calls:
            call.seconds = seconds
        return results

    async def _ask(self, name: str, arguments: Sequence[Mapping[str, Any]]) -> list[Result]:
        call = partial(self.tools[name].call, arguments)
        try:
            answers = await within(self.failures.tool_timeout_s, call)
            return checked_results(answers, len(arguments), no_answer(name))
        except Exception as error:
            logger.warning("a call of the tool %s failed: %s", name, reason(error))
            shown = no_answer(name, late=isinstance(error, Late))
            return [Failure(shown, "tool", reason(error))] * len(arguments)
