"""`rag-r1 eval sigma`: proposes the state threshold `rag_r1.agent.max_state` from finished episodes.

An answer is accepted while the state of the memory, the sum of -log p of the policy's tokens that are still
in the context (rag_r1/agent/memory.py), is below `max_state`. That is TC-RAG's controller, whose sigma of 1.2
is about sums of entropies and does not carry over. So play questions with a `max_state` above all states,

    rag-r1 eval ... --out evals/states rag_r1.agent.max_state=1000000
    rag-r1 eval sigma evals/states

and read at which states answers are right and wrong. Two thresholds are proposed:

    quantile   the lowest that accepts a share of the right answers, by default 90 %: what it costs is known,
               and what it saves is the share of wrong answers that it demotes
    balanced   the one of best balanced accuracy, the mean of the share of right answers that are accepted and
               of wrong ones that are not (Brodersen et al., 2010)

A threshold lies half-way between two states that occurred. The area under the ROC curve (Mann and Whitney) is
the chance that a wrong answer has a higher state than a right one: near 0.5 the state tells nothing, and no
threshold helps. An answer in the last turn counts whatever the state, and has none.
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

from rag_r1.agent.records import placed_records, trajectory_of
from rag_r1.evaluation.report.run_table import no_records, records_path
from rag_r1.io.errors import DataError
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.options.declare import Constraint
from rag_r1.rollouts.arguments import Above0
from rag_r1.runs.errors import RunError
from rag_r1.runs.markdown import integer, number, table
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks

#: The quantiles of the states that are printed.
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
#: With fewer right or wrong answers a threshold depends on chance.
MIN_ANSWERS = 50
#: An area under the curve that is closer to 0.5 is of no use.
_MIN_AREA_GAIN = 0.05


@dataclass(frozen=True)
class AnswerStates:
    """States at the answer turn, in nats, of right and of wrong answers, sorted. `excluded`: how many records
    have no state, by reason."""

    right: np.ndarray
    wrong: np.ndarray
    excluded: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Threshold:
    """A proposed `max_state`: the shares of right and of wrong answers whose state is below it."""

    sigma: float
    right_accepted: float
    wrong_accepted: float

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the shares of right answers that are accepted and of wrong ones that are not."""
        return (self.right_accepted + 1 - self.wrong_accepted) / 2


def states_of(records: Iterable[dict[str, Any]], term: str = "em", right_from: float = 1.0) -> AnswerStates:
    """Returns the states in trajectory records. An answer is right if the value of `term` is at least
    `right_from`. Raises DataError if a record is not a trajectory."""
    states: dict[bool, list[float]] = {True: [], False: []}
    excluded: Counter[str] = Counter()
    for record in records:
        trajectory = trajectory_of(record)
        value = trajectory.rewards.get(term)
        state = trajectory.turns[-1].state if trajectory.turns else None
        if trajectory.answer is None:
            excluded["without an answer"] += 1
        elif value is None:
            excluded[f"without a value of {term!r}"] += 1
        elif state is None:
            excluded["without a state: answered in the last turn, or played without max_state"] += 1
        elif not math.isfinite(state):
            excluded["with a state that is not finite"] += 1
        else:
            states[value >= right_from].append(state)
    return AnswerStates(np.sort(states[True]), np.sort(states[False]), dict(excluded))


def thresholds_of(states: AnswerStates) -> list[Threshold]:
    """Returns the thresholds that accept different answers, in ascending order: half-way between neighbouring
    states, and one above all of them. Empty without a right and a wrong answer."""
    if not len(states.right) or not len(states.wrong):
        return []
    values = np.unique(np.concatenate([states.right, states.wrong]))
    sigmas = np.append((values[:-1] + values[1:]) / 2, values[-1] + max(1.0, abs(values[-1])))
    right, wrong = (
        np.searchsorted(group, sigmas, side="left") / len(group) for group in (states.right, states.wrong)
    )
    rows = zip(sigmas.tolist(), right.tolist(), wrong.tolist(), strict=True)
    return [Threshold(*row) for row in rows if row[0] > 0]


def quantile_threshold(thresholds: Sequence[Threshold], share: float) -> Threshold:
    """Returns the lowest threshold that accepts at least `share` of the right answers."""
    return next(threshold for threshold in thresholds if threshold.right_accepted >= share - 1e-12)


def best_balanced(thresholds: Sequence[Threshold]) -> Threshold:
    """Returns the threshold of best balanced accuracy; of equal ones the highest, which demotes the
    fewest."""
    return max(thresholds, key=lambda t: (round(t.balanced_accuracy, 12), t.sigma))


def roc_area(states: AnswerStates) -> float:
    """Returns the chance that a wrong answer has a higher state than a right one; equal states count half."""
    lower = sum(np.searchsorted(states.right, states.wrong, side=side).sum() for side in ("left", "right"))
    return float(lower / 2 / (len(states.right) * len(states.wrong)))


def report(states: AnswerStates, share: float) -> list[str]:
    """Returns the lines to be printed: the distributions, the proposals, and warnings about them."""
    lines = [*_distributions(states), ""]
    lines += [f"left out: {integer(count)} records {reason}" for reason, count in states.excluded.items()]
    thresholds = thresholds_of(states)
    if not thresholds:
        return [
            *lines,
            "no max_state is proposed: play questions until there are right and wrong answers with a state",
        ]
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
    """Returns the table of the states of right and of wrong answers."""
    rows = []
    for name, group in (("right", states.right), ("wrong", states.wrong)):
        facts = [None] * (1 + len(_QUANTILES))
        if len(group):
            facts = [group.mean(), *np.quantile(group, _QUANTILES)]
        rows.append([name, integer(len(group)), *(number(value, 2) for value in facts)])
    quantiles = (f"{quantile:.0%}" for quantile in _QUANTILES)
    return table(["state at the answer (nats)", "answers", "mean", *quantiles], rows)


def _proposals(thresholds: Sequence[Threshold], share: float) -> list[str]:
    """Returns the table of the two proposed thresholds."""
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
    """The runs, and the term by which their answers are right."""

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
    """Print the distributions and the proposals; returns the exit status."""
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
    if args.check_only:
        print(f"all checks passed: {', '.join(map(str, args.runs))} would be read")
        return 0
    records = (record for _, record in _located_trajectories(args.runs))
    states = states_of(records, args.term, args.right_from)
    print("\n".join(report(states, args.accept)))
    return 0


def _check_start(args: SigmaArguments) -> None:
    """Raises StartError for runs without a trajectory."""
    with StartChecks() as checks:
        for run in args.runs:
            checks.run(_check_run, run)


def _check_run(run: Path) -> None:
    """Raises RunError for a run without records, DataError for one whose first record is not a trajectory."""
    if next(_located_trajectories([run]), None) is None:
        raise no_records(run)


def _located_trajectories(runs: Sequence[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the records of runs with their places in the files. Raises DataError, with the place, for one
    that is not a trajectory."""
    for location, record in placed_records(*map(records_path, runs)):
        try:
            trajectory_of(record)
        except DataError as error:
            raise DataError(f"{location}: {error}: give records of trajectories") from error
        yield location, record


if __name__ == "__main__":
    sys.exit(main())
