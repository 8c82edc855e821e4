"""Credit: the value that a term gives to a trajectory, and each turn's share of it.

A term returns one number, or one number for each turn. Both are read here into a `Credit`, the value of the
trajectory and the values of its turns, with one invariant: **the turns sum to the value**, exactly
(`math.fsum`, whose result depends neither on the order of the turns nor on the version of Python). A Credit
that violates it cannot be made, and the weighted sum of Credits is a Credit, so the invariant also holds for
the score.

- One number is credited to the last turn. It judges the outcome of the episode, which only the last turn
  decides, and veRL puts the reward of a trajectory on the last token: with such terms alone, training on the
  turns' scores is the same as training on the trajectory's.
- With one number for each turn, the value is their sum.
- A trajectory without turns has a value but no turn to credit: the policy has written nothing.

A None, or a number that is not finite, among the turns leaves the whole term without a value: the sum of the
others would count that turn as 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Credit:
    """A trajectory's value and that of each of its turns. Raises ValueError unless the value is finite and
    the turns, if there are any, sum to it."""

    value: float
    turns: tuple[float, ...]
    #: Whether the term gave one number for the whole trajectory.
    is_outcome: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"{self.value} is not a finite number")
        if self.turns and math.fsum(self.turns) != self.value:
            raise ValueError(f"the turns {self.turns} do not sum to {self.value}")

    @classmethod
    def of_turns(cls, turns: Sequence[float]) -> Credit:
        """The Credit of these values, one for each turn. Raises OverflowError if their sum is too large for a
        float."""
        return cls(math.fsum(turns), tuple(turns))

    @classmethod
    def of_last_turn(cls, value: float, n_turns: int) -> Credit:
        """The Credit of one number for a trajectory of `n_turns` turns: the last turn has all of it."""
        return cls(value, (*[0.0] * (n_turns - 1), value) if n_turns else (), is_outcome=True)


def as_credit(value: Any, n_turns: int) -> Credit | None:
    """Reads what a term returned for a trajectory of `n_turns` turns; None if the term could not judge it.

    Accepts a number, a sequence of numbers, one for each turn (a list, a tuple, an array of numpy or torch),
    and None. Raises TypeError for anything else, and ValueError for a wrong count.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        if len(value) != n_turns:
            raise ValueError(f"{len(value)} values for {n_turns} turns; return one number, or one for each")
        turns = [_finite(number) for number in value]
        return None if None in turns else Credit.of_turns(turns)
    number = _finite(value)
    return None if number is None else Credit.of_last_turn(number, n_turns)


def weighted_sum(pairs: Sequence[tuple[float, Credit]], n_turns: int) -> Credit:
    """Returns the Credit of (weight, Credit) pairs, summed in their order; 0 without pairs."""
    if not n_turns:
        return Credit(sum((weight * credit.value for weight, credit in pairs), 0.0), ())
    return Credit.of_turns(
        [sum((weight * credit.turns[turn] for weight, credit in pairs), 0.0) for turn in range(n_turns)]
    )


def _finite(value: Any) -> float | None:
    """The value as a float; None for None, NaN and infinity. Raises TypeError for what is not a number."""
    return float(value) if value is not None and math.isfinite(value) else None
