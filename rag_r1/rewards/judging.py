"""One term at work: a plain function is called, an async one is awaited within its time.

What comes back is read into a Credit (credit.py). There is none, and the term is left out of the sample, if
the term could not judge:

- it returned None, or a number that is not finite;
- it raised `Refused`, because a judge declined or its answer makes no sense;
- an async term took longer than its `timeout_s`, or a time-out of its own ended it.

Whatever else it raises is a fault in code, and so is a value that is none, or one value too few: RewardError
with the names of term and trajectory, which ends the run. A reward of 0 would hide it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rag_r1.agent import Trajectory
from rag_r1.agent.boundary import Late, within
from rag_r1.rewards.credit import Credit, as_credit
from rag_r1.rewards.registry import Refused, RewardError, TermFunction

#: Seconds that an async term has for one trajectory, unless its entry says otherwise.
DEFAULT_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Verdict:
    """A term's Credit, or None and, where it is known, why there is none."""

    credit: Credit | None
    reason: str = ""


@dataclass(frozen=True)
class Term:
    """One entry of the list: what it is called in the logs, what it weighs, and what computes it.

    `timeout_s` limits an async function only: a plain one that hangs cannot be interrupted.
    """

    name: str
    weight: float
    function: TermFunction
    options: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def is_async(self) -> bool:
        return is_async(self.function)

    def __call__(self, trajectory: Trajectory, golds: list[str]) -> Verdict:
        """The verdict of a plain function. Raises RewardError, as the module's paragraph says."""
        with self._naming(trajectory):
            try:
                given = self.function(trajectory, golds, **self.options)
            except Refused as refusal:
                return Verdict(None, str(refusal))
            return Verdict(as_credit(given, len(trajectory.turns)))

    async def judge(self, trajectory: Trajectory, golds: list[str]) -> Verdict:
        """The verdict of an async function. Raises RewardError, as the module's paragraph says."""
        with self._naming(trajectory):
            try:
                given = await within(self.timeout_s, lambda: self.function(trajectory, golds, **self.options))
            except (Refused, Late) as refusal:
                return Verdict(None, str(refusal))
            except (asyncio.TimeoutError, TimeoutError):  # one and the same from Python 3.11 on
                return Verdict(None, "a time-out of its own")
            return Verdict(as_credit(given, len(trajectory.turns)))

    @contextmanager
    def _naming(self, trajectory: Trajectory) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise RewardError(
                f"reward term {self.name!r} failed on trajectory {trajectory.id!r}: {what}"
            ) from error


def is_async(function: TermFunction) -> bool:
    """Is it `async def`, itself or as the `__call__` of an object?"""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
