"""Credit: the value that a term gives to a trajectory, and the share of each turn in it.

A term returns one number, or one number for each turn. Both are converted to a `Credit` with one invariant:
**the values of the turns sum to the value of the trajectory**, exactly. (The sum is `math.fsum`, which
depends neither on the order of the turns nor on the version of Python.) A Credit that violates the invariant
cannot be created, and a weighted sum of Credits is a Credit, so the invariant also holds for the score.

- One number is credited to the last turn. It judges the outcome of the episode, which the last turn decides,
  and veRL puts the reward of a trajectory on its last token. So with such terms alone, training on the scores
  of the turns is the same as training on the score of the trajectory.
- With one number for each turn, the value of the trajectory is their sum.
- A trajectory without turns has a value, but no turn to credit, since the policy has written nothing.

If the number of a turn is None or not finite, the whole term has no value: otherwise this turn would count as
0 in the sum.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any


@dataclass(frozen=True)
class Credit:
    """The value of a trajectory and those of its turns. Raises ValueError unless the value is finite and the
    turns, if there are any, sum to it."""

    value: float
    turns: tuple[float, ...]
    #: Whether the term returned one number for the whole trajectory.
    is_outcome: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"{self.value} is not a finite number")
        if self.turns and math.fsum(self.turns) != self.value:
            raise ValueError(f"the turns {self.turns} do not sum to {self.value}")

    @classmethod
    def of_turns(cls, turns: Sequence[float]) -> Credit:
        """Return the Credit of one value for each turn. Raises OverflowError if their sum is too large for a
        float."""
        return cls(math.fsum(turns), tuple(turns))

    @classmethod
    def of_last_turn(cls, value: float, n_turns: int) -> Credit:
        """Return the Credit of one number for a trajectory of `n_turns` turns: all of it is on the last turn,
        if there is one."""
        return cls(value, (*[0.0] * (n_turns - 1), value) if n_turns else (), is_outcome=True)


def as_credit(value: Any, n_turns: int) -> Credit | None:
    """Convert what a term returned for a trajectory of `n_turns` turns; None if the term could not judge it.

    Accepts a number, None, or a number for each turn as a list, a tuple or an array of numpy or torch. Raises
    TypeError for anything else, ValueError for a wrong number of values, and OverflowError for a value or a
    sum that is too large for a float.
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
    """Return the weighted sum of (weight, Credit) pairs, added in their order; 0 without pairs. Raises
    ValueError if it is not finite, and OverflowError if the sum of its turns is too large for a float."""
    if not n_turns:
        return Credit(_sum_in_order(weight * credit.value for weight, credit in pairs), ())
    return Credit.of_turns(
        [_sum_in_order(weight * credit.turns[turn] for weight, credit in pairs) for turn in range(n_turns)]
    )


def _sum_in_order(values: Iterable[float]) -> float:
    """Return the sum of the values, each rounded in turn; `sum` does this only before Python 3.12."""
    return reduce(operator.add, values, 0.0)


def _finite(value: Any) -> float | None:
    """Return the value as a float; None for None, NaN and infinity. Raises TypeError if it is not a
    number, and OverflowError for a whole number that is too large for a float."""
    return float(value) if value is not None and math.isfinite(value) else None
