"""`rag-r1 eval sigma`: proposes the state threshold `rag_r1.agent.max_state` from finished episodes.

The state of the memory is the sum of -log p over the policy's tokens that are still in the context
(rag_r1/agent/memory.py). An answer is accepted only while the state is below `max_state`. This is the
controller of TC-RAG; its sigma of 1.2 refers to sums of entropies and cannot be used here. Instead, play
questions with a `max_state` above all states, and look at the states of right and wrong answers:

    rag-r1 eval ... --out evals/states rag_r1.agent.max_state=1000000
    rag-r1 eval sigma evals/states

The command proposes two thresholds, each half-way between two states that occurred, or above all of them:

    quantile   the lowest threshold that accepts a given share of the right answers, by default 90 %
    balanced   the threshold with the best balanced accuracy, which is the mean of the share of right answers
               that are accepted and the share of wrong ones that are rejected (Brodersen et al., 2010)

The area under the ROC curve (Mann and Whitney) is the probability that a wrong answer has a higher state than
a right one. If it is near 0.5, the state carries no information, and no threshold helps. An answer in the
last turn is always accepted, so it has no state.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from pydantic_settings import CliPositionalArg

from rag_r1.agent.records import located_records, trajectory_of
from rag_r1.evaluation.report.run_table import no_records, records_path
from rag_r1.io.errors import DataError
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Above0, Arguments, argument, read_arguments
from rag_r1.options.types import Constraint
from rag_r1.rewards import check_threshold, find_term, term_names
from rag_r1.runs.errors import RunError
from rag_r1.runs.markdown import integer, number, table
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks

#: The quantiles of the states in the printed table.
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
#: The fewest right answers, and wrong ones, with which a threshold does not depend on chance.
MIN_ANSWERS = 50
#: Reasons for which a record has no state; the second one names the reward term.
_NO_ANSWER, _NO_VALUE = "without an answer", "without a value of {!r}"
#: How far the area under the curve must be above 0.5 for the state to be useful.
_MIN_AREA_GAIN = 0.05


@dataclass(frozen=True)
class AnswerStates:
    """The states, in nats, at which answers were given."""

    #: The states of right answers, sorted.
    right: np.ndarray
    #: The states of wrong answers, sorted.
    wrong: np.ndarray
    #: The number of records without a state, by reason.
    excluded: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Threshold:
    """A possible value of `max_state`."""

    #: The threshold, in nats.
    sigma: float
    #: The share of right answers whose state is below the threshold.
    right_accepted: float
    #: The share of wrong answers whose state is below the threshold.
    wrong_accepted: float

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the share of right answers that are accepted and of wrong ones that are rejected."""
        return (self.right_accepted + 1 - self.wrong_accepted) / 2


def states_of(records: Iterable[dict[str, Any]], term: str = "em", right_from: float = 1.0) -> AnswerStates:
    """Return the states of the answers in trajectory records. An answer is right if its value of the reward
    term `term` is at least `right_from`. Raises DataError if a record is not a trajectory, or has values of
    wrong types."""
    states: dict[bool, list[float]] = {True: [], False: []}
    excluded: Counter[str] = Counter()
    for record in records:
        trajectory = trajectory_of(record)
        try:
            value = trajectory.rewards.get(term)
            state = trajectory.turns[-1].state if trajectory.turns else None
            is_right = None if value is None or math.isnan(value) else value >= right_from
            is_finite = state is not None and math.isfinite(state)
        except (TypeError, AttributeError, OverflowError) as error:
            raise DataError(f"the record {trajectory.id!r} is no trajectory: {error}: remove it") from error
        if trajectory.answer is None:
            excluded[_NO_ANSWER] += 1
        elif is_right is None:
            excluded[_NO_VALUE.format(term)] += 1
        elif state is None:
            excluded["without a state: answered in the last turn, or played without max_state"] += 1
        elif not is_finite:
            excluded["with a state that is not finite"] += 1
        else:
            states[is_right].append(state)
    return AnswerStates(np.sort(states[True]), np.sort(states[False]), dict(excluded))


def thresholds_of(states: AnswerStates) -> list[Threshold]:
    """Return all thresholds that accept different answers, in ascending order: one between each pair of
    neighbouring states, and one above all states. The list is empty unless there are right and wrong
    answers."""
    if not len(states.right) or not len(states.wrong):
        return []
    values = np.unique(np.concatenate([states.right, states.wrong]))
    sigmas = np.append((values[:-1] + values[1:]) / 2, values[-1] + max(1.0, abs(values[-1])))
    right, wrong = (
        np.searchsorted(group, sigmas, side="left") / len(group) for group in (states.right, states.wrong)
    )
    rows = zip(sigmas.tolist(), right.tolist(), wrong.tolist(), strict=True)
    return [Threshold(*row) for row in rows if row[0] > 0]  # as `max_state` must be


def quantile_threshold(thresholds: Sequence[Threshold], share: float) -> Threshold:
    """Return the lowest threshold that accepts at least `share` of the right answers, up to rounding errors.
    There must be thresholds."""
    return next(threshold for threshold in thresholds if threshold.right_accepted >= share - 1e-12)


def best_balanced(thresholds: Sequence[Threshold]) -> Threshold:
    """Return the threshold with the best balanced accuracy; among equals the highest, which rejects the
    fewest answers."""
    return max(thresholds, key=lambda t: (round(t.balanced_accuracy, 12), t.sigma))


def roc_area(states: AnswerStates) -> float:
    """Return the probability that a wrong answer has a higher state than a right one. Ties count one
    half."""
    lower = sum(np.searchsorted(states.right, states.wrong, side=side).sum() for side in ("left", "right"))
    return float(lower / 2 / (len(states.right) * len(states.wrong)))


def report(states: AnswerStates, share: float) -> list[str]:
    """Return the lines to be printed: the distributions of the states, the proposals, and warnings. `share`
    is the share of right answers that the first proposal accepts."""
    lines = [*_distributions(states), ""]
    lines += [f"left out: {integer(count)} records {reason}" for reason, count in states.excluded.items()]
    thresholds = thresholds_of(states)
    if not thresholds:
        remedy = "play questions until there are right and wrong answers with a state"
        return [*lines, f"no max_state is proposed: {remedy}"]
    lines += _proposals(thresholds, share)
    area = roc_area(states)
    lines += ["", f"chance that a wrong answer has a higher state than a right one: {area:.3f}"]
    if area < 0.5 + _MIN_AREA_GAIN:
        lines.append("the state does not tell right answers from wrong ones here: leave max_state at null")
    if min(len(states.right), len(states.wrong)) < MIN_ANSWERS:
        lines.append(
            f"fewer than {MIN_ANSWERS} answers of a kind: play more questions before relying on this"
        )
    return lines


def _distributions(states: AnswerStates) -> list[str]:
    """Return the lines of the table with the states of right and wrong answers."""
    rows = []
    for name, group in (("right", states.right), ("wrong", states.wrong)):
        facts = [None] * (1 + len(_QUANTILES))
        if len(group):
            facts = [group.mean(), *np.quantile(group, _QUANTILES)]
        rows.append([name, integer(len(group)), *(number(value, 2) for value in facts)])
    quantiles = (f"{quantile:.0%}" for quantile in _QUANTILES)
    return table(["state at the answer (nats)", "answers", "mean", *quantiles], rows)


def _proposals(thresholds: Sequence[Threshold], share: float) -> list[str]:
    """Return the lines of the table with the two proposed thresholds."""
    proposals = {
        f"{share:.0%} of the right answers": quantile_threshold(thresholds, share),
        "best balanced accuracy": best_balanced(thresholds),
    }
    rows = []
    for name, threshold in proposals.items():
        accepted = (f"{threshold.right_accepted:.1%}", f"{threshold.wrong_accepted:.1%}")
        accuracy = number(threshold.balanced_accuracy, 3)
        rows.append([name, number(threshold.sigma, 3), *accepted, accuracy])
    return table(["proposed", "max_state", "right accepted", "wrong accepted", "balanced accuracy"], rows)


class SigmaArguments(Arguments):
    """The runs, the term by which their answers are right, and the share to accept."""

    runs: CliPositionalArg[list[Path]] = argument(
        "folders of runs, or files of records, that were played with a max_state above all states", "RUN"
    )
    term: str = argument("reward term by which an answer is right", "NAME", default="em")
    right_from: Above0 = argument("value of the term from which an answer is right", default=1.0)
    accept: Annotated[float, Field(gt=0, le=1), Constraint("a number above 0 and at most 1")] = argument(
        "share of the right answers that the first proposal accepts", "SHARE", default=0.9
    )
    check_only: bool = argument(CHECK_ONLY, default=False)


@command_main(DataError, RunError, OSError)
def main(arguments: Sequence[str] | None = None, prog: str = "rag-r1 eval sigma") -> int:
    """Print the distributions and the proposals, and return the exit status, which is 1 if no answer has a
    state."""
    args = read_arguments(
        SigmaArguments,
        arguments,
        prog=prog,
        description="Propose rag_r1.agent.max_state, TC-RAG's sigma, from the states at which played answers "
        "were right and wrong.",
        epilog="example:\n"
        "  rag-r1 eval --model outputs/grpo --questions test.parquet --protocol agentic_rag_en \\\n"
        "      --out evals/states rag_r1.agent.max_state=1000000\n"
        "  rag-r1 eval sigma evals/states",
        check=_check_start,
    )
    _check_start(args)
    states = states_of(_trajectory_records(args.runs), args.term, args.right_from)
    if not len(states.right) and not len(states.wrong):
        reasons = "; ".join(f"{integer(count)} {reason}" for reason, count in states.excluded.items())
        remedy = (
            "play the questions with a rag_r1.agent.max_state above all states, and give that run: `rag-r1 "
            "eval @RUN/settings.yaml --out OTHER rag_r1.agent.max_state=1000000` (with --engine completions "
            "and vLLM)"
        )
        raise RunError(f"{', '.join(map(str, args.runs))}: no answer has a state ({reasons}): {remedy}")
    if args.check_only:
        print(f"all checks passed: {', '.join(map(str, args.runs))} would be read")
        return 0
    print("\n".join(report(states, args.accept)))
    return 0


def _check_start(args: SigmaArguments) -> None:
    """Raise StartError for runs without trajectories, and for a --right-from that no value of --term or every
    one reaches."""
    with StartChecks() as checks:
        if args.term in term_names():  # else it is a name that a run has given to one
            function = find_term(args.term, "--term")
            checks.run(check_threshold, "--right-from", args.right_from, args.term, function, {})
        for run in args.runs:
            checks.run(_check_run, run, args.term)


def _check_run(run: Path, term: str) -> None:
    """Raise RunError if a run has no records, or if the first one has rewards without this term, and
    DataError if that record is not a trajectory."""
    record = next(_trajectory_records([run]), None)
    if record is None:
        raise no_records(run)
    rewards = trajectory_of(record).rewards
    if rewards and term not in rewards:
        names = ", ".join(sorted(rewards))
        raise RunError(f"--term {term}: the rewards of {run} are {names}: give one of them")


def _trajectory_records(runs: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield the records of runs. Raises DataError, which names file and line, for a record that is not a
    trajectory."""
    for location, record in located_records(*map(records_path, runs)):
        try:
            trajectory_of(record)
        except DataError as error:
            raise DataError(f"{location}: {error}: give records of trajectories") from error
        yield record


if __name__ == "__main__":
    sys.exit(main())
