"""Calls one reward term, with a time limit if it is async.

The value that it returns becomes a Credit (credit.py). A term that could not judge has no Credit and is left
out of the sample. This is the case if

- it returned None or a number that is not finite,
- it raised `CannotJudgeError`, e.g. because a judge declined or gave an unusable answer, or
- it is async and took longer than its `timeout_s`, or raised a TimeoutError itself.

Any other exception is a bug, and so are values of a wrong type or number. These raise a RewardError that
names the term and the trajectory and ends the run, since a reward of 0 would hide the bug.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rag_r1.agent import Trajectory
from rag_r1.io.call_timeout import CallTimeoutError, with_timeout
from rag_r1.rewards.credit import Credit, as_credit
from rag_r1.rewards.registry import CannotJudgeError, RewardError, TermFunction

#: Seconds that an async term may take for one trajectory, unless its entry sets `timeout_s`.
DEFAULT_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Verdict:
    """The Credit of a term, or None and the reason, if that is known."""

    credit: Credit | None
    reason: str = ""


@dataclass(frozen=True)
class Term:
    """One entry of `rag_r1.reward`."""

    #: The name in the logs.
    name: str
    weight: float
    function: TermFunction
    #: The keyword arguments of the function.
    options: dict[str, Any] = field(default_factory=dict)
    #: Limits an async function only, since a plain one cannot be interrupted.
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def is_async(self) -> bool:
        """Whether the function must be awaited. Then `judge` calls it; otherwise the Term itself is
        called."""
        return is_async(self.function)

    def __call__(self, trajectory: Trajectory, golds: list[str]) -> Verdict:
        """Return the verdict of a plain function. Raises RewardError if it fails, or returns anything but
        numbers."""
        with self._named_errors(trajectory):
            try:
                value = self.function(trajectory, golds, **self.options)
            except CannotJudgeError as refusal:
                return Verdict(None, str(refusal))
            return Verdict(as_credit(value, len(trajectory.turns)))

    async def judge(self, trajectory: Trajectory, golds: list[str]) -> Verdict:
        """Return the verdict of an async function. Raises RewardError if it fails, or returns anything but
        numbers."""
        with self._named_errors(trajectory):
            try:
                value = await with_timeout(self.timeout_s, self.function(trajectory, golds, **self.options))
            except (CannotJudgeError, CallTimeoutError) as refusal:
                return Verdict(None, str(refusal))
            except TimeoutError:
                return Verdict(None, "a time-out of its own")
            return Verdict(as_credit(value, len(trajectory.turns)))

    @contextmanager
    def _named_errors(self, trajectory: Trajectory) -> Iterator[None]:
        """Convert every exception in the block to a RewardError that names the term and the trajectory."""
        try:
            yield
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            raise RewardError(
                f"reward term {self.name!r} failed on trajectory {trajectory.id!r}: {cause}"
            ) from error


def is_async(function: TermFunction) -> bool:
    """Whether a function is an `async def`, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
