"""The reward of a trajectory: a weighted sum of terms, read from a YAML list.

    rag_r1:
      reward:
        - {term: em, weight: 1.0}
        - {term: f1, weight: 0.5, name: partial}    # `name` is its key in the logs; by default the term

The list is checked as a whole when it is read, before a GPU is used, and all faults are reported at once.

`await reward.judge(trajectory, golds)` returns a `RewardResult`. Its `rewards` have the same keys for every
sample: `score` (the sum), the value of each term before weighting, and `missing_terms`. Its `turn_scores` are
the scores of the turns, which sum to `score` (credit.py). All async terms of a trajectory run concurrently. A
sum of plain terms can also be called directly, which returns the rewards alone.

A term that could not judge (term_call.py) is left out of the sum, in every turn. Its value is None, which
veRL's validation metrics leave out of their means, and `missing_terms` counts it. A term that fails in
another way ends the run with an error that names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_r1.agent import Trajectory
from rag_r1.agent.records import summary
from rag_r1.agent.tokens.signals import signals
from rag_r1.data.rows import as_golds
from rag_r1.protocols import Protocol
from rag_r1.rewards.config import read_entry
from rag_r1.rewards.credit import Credit, weighted_sum
from rag_r1.rewards.registry import RewardError
from rag_r1.rewards.term_call import Term, Verdict

_KEY = "rag_r1.reward"
_EMPTY = Trajectory("", "", "")
#: Names that no term may have: those of the rewards, those that veRL's validation gives a meaning, and those
#: of the figures of an episode that the reward manager returns together with the rewards.
_RESERVED = {
    *("score", "missing_terms", "turn_scores", "reward", "acc", "pred"),
    *("right", "source", "masked", "undumped"),
    *summary(_EMPTY),
    *signals(_EMPTY),
}


@dataclass(frozen=True)
class RewardResult:
    """The scores of one trajectory."""

    #: `{"score": sum, "<name>": value, ..., "missing_terms": count}`.
    rewards: dict[str, float | None]
    #: One number for each turn; they sum to the score. Empty for a trajectory without turns.
    turn_scores: list[float]
    #: The terms without a value, each with the reason ("" if it is not known).
    missing: dict[str, str]
    #: The Credit of every other term, before weighting; token_credit.py spreads these over the tokens.
    credits: dict[str, Credit] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class RewardSum:
    """The weighted sum of some terms. In all methods `golds` is anything that `as_golds` reads."""

    terms: tuple[Term, ...]

    @classmethod
    def from_config(cls, config: Sequence[Mapping[str, Any]], protocol: Protocol | None = None) -> RewardSum:
        """Read a list of `{term, weight, name?, timeout_s?, ...options}`.

        `protocol` is passed to the terms that take it; without it they look for the tags of the shipped
        protocol that a trajectory names. Raises RewardError, which names every wrong key, e.g.
        `rag_r1.reward[1].weight`.
        """
        reward, faults = cls.read(config, protocol)
        if len(faults) == 1:
            raise faults[0]
        if faults:
            raise RewardError("; ".join(map(str, faults)))
        return reward

    @classmethod
    def read(
        cls, config: Sequence[Mapping[str, Any]], protocol: Protocol | None = None
    ) -> tuple[RewardSum, list[RewardError]]:
        """Return the sum of the terms without a fault, and the faults of the others. The parameters are those
        of `from_config`."""
        if isinstance(config, str | Mapping) or not isinstance(config, Sequence) or not config:
            message = f"{_KEY} must be a list of at least one {{term, weight, ...}}, not {config!r}"
            return cls(()), [RewardError(message)]
        terms: list[Term] = []
        faults: list[RewardError] = []
        for i, entry in enumerate(config):
            term, entry_faults = read_entry(entry, f"{_KEY}[{i}]", protocol)
            if term is not None and term.name in (*_RESERVED, *(earlier.name for earlier in terms)):
                message = f"{_KEY}[{i}]: the name {term.name!r} is taken in the logs; choose another `name`"
                entry_faults.append(RewardError(message))
            if term is not None and not entry_faults:
                terms.append(term)
            faults += entry_faults
        return cls(tuple(terms)), faults

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each term. A score is the sum of weight x value over the terms that have a value."""
        return {term.name: term.weight for term in self.terms}

    def __call__(self, trajectory: Trajectory, golds: Any) -> dict[str, float | None]:
        """Return the rewards of one trajectory, from plain terms. Raises RewardError as `judge` does, and if
        a term is async."""
        if async_names := [term.name for term in self.terms if term.is_async]:
            raise RewardError(
                f"{', '.join(async_names)}: an async term must be awaited; use `await reward.judge(...)`"
            )
        gold_answers = as_golds(golds)
        return self.result_of(trajectory, [term(trajectory, gold_answers) for term in self.terms]).rewards

    async def judge(self, trajectory: Trajectory, golds: Any) -> RewardResult:
        """Return the result of one trajectory. Raises RewardError if a term fails or the sum is not
        finite."""
        gold_answers = as_golds(golds)
        verdicts = {term.name: term(trajectory, gold_answers) for term in self.terms if not term.is_async}
        tasks = {
            term.name: asyncio.create_task(term.judge(trajectory, gold_answers))
            for term in self.terms
            if term.is_async
        }
        try:
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():  # if one of them failed, the others are still running
                task.cancel()
        verdicts |= {name: task.result() for name, task in tasks.items()}
        return self.result_of(trajectory, [verdicts[term.name] for term in self.terms])

    async def score(self, trajectory: Trajectory, golds: Any, mask: Collection[str]) -> bool:
        """Judge a trajectory, and write the rewards and the scores of its turns into it. Returns whether it
        has a score; a trajectory with a failure of a kind in `mask` has none. Raises RewardError as `judge`
        does."""
        if not trajectory.masked(mask):
            result = await self.judge(trajectory, golds)
            trajectory.rewards = result.rewards
            trajectory.turn_scores = result.turn_scores
            if result.missing:
                names = (f"{name} ({reason})" if reason else name for name, reason in result.missing.items())
                trajectory.add_failure("judge", f"no value for {', '.join(names)}")
        if not trajectory.masked(mask):  # checked again, since the judge may have failed
            return True
        trajectory.rewards = {**self.unjudged(), **trajectory.rewards, "score": None}
        trajectory.turn_scores = []
        return False

    def unjudged(self) -> dict[str, float | None]:
        """Return the rewards of a trajectory that is not judged, in which no term has a value."""
        values = {term.name: None for term in self.terms}
        return {"score": None, **values, "missing_terms": float(len(values))}

    def result_of(self, trajectory: Trajectory, verdicts: Sequence[Verdict]) -> RewardResult:
        """Return the result of the verdicts of all terms, in order. Raises RewardError if the sum is not
        finite."""
        pairs = list(zip(self.terms, verdicts, strict=True))
        weighted = [(term.weight, v.credit) for term, v in pairs if v.credit is not None]
        try:
            total = weighted_sum(weighted, len(trajectory.turns))
        except (ValueError, OverflowError) as error:
            raise RewardError(f"the score of trajectory {trajectory.id!r} is invalid: {error}") from error
        values = {term.name: None if v.credit is None else v.credit.value for term, v in pairs}
        missing = {term.name: v.reason for term, v in pairs if v.credit is None}
        term_credits = {term.name: v.credit for term, v in pairs if v.credit is not None}
        rewards = {"score": total.value, **values, "missing_terms": float(len(missing))}
        return RewardResult(rewards, list(total.turns), missing, term_credits)
