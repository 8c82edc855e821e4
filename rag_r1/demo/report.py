"""Writes the report of a demo run: a table, a plot and a JSON file of what changed.

All figures are computed from the trajectory records that the run wrote (`RUN/trajectories/val/step_*.jsonl`
and `RUN/trajectories/train/step_*.jsonl`), so `python -m rag_r1.demo.report --run RUN` can make the same
report again at any time. It takes recipe, seed and duration from the earlier results.json.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from rag_r1.agent.records import records_by_step, summary, trajectory_of
from rag_r1.demo.world import KINDS
from rag_r1.evaluation.report.estimates import known_mean, wilson_interval
from rag_r1.io.atomic_files import write_json, write_text
from rag_r1.io.bounded_json import read_json_object
from rag_r1.io.errors import DataError
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.runs import pictures
from rag_r1.runs.markdown import Page, number


@dataclass(frozen=True)
class HeldOutMeans:
    """Means over the episodes of one validation.

    Times are left out: the validation before the training includes the first compilation of the engine, so
    they could not be compared.
    """

    #: Exact match by kind of question.
    em_by_kind: dict[str, float]
    #: Exact match over all questions.
    em: float
    #: Searches and turns per question.
    searches: float
    turns: float

    def labelled(self) -> dict[str, float]:
        """Return the means by their labels in results.json and in the table."""
        return {
            **{f"EM {kind}": em for kind, em in self.em_by_kind.items()},
            "EM all": self.em,
            "searches a question": self.searches,
            "turns a question": self.turns,
        }


def summarise(records: Sequence[dict[str, Any]]) -> HeldOutMeans:
    """Average over the records of a validation. Exact match is nan if it is not among the run's rewards."""
    by_kind: dict[str, list[float | None]] = defaultdict(list)
    for record in records:
        by_kind[record["data_source"].rpartition("/")[2]].append(record["rewards"].get("em"))
    kinds = dict.fromkeys([*KINDS, *sorted(by_kind)])  # the world's kinds first, in its order
    figures = [summary(trajectory_of(record)) for record in records]
    return HeldOutMeans(
        em_by_kind={kind: known_mean(by_kind[kind]) for kind in kinds if kind in by_kind},
        em=known_mean([record["rewards"].get("em") for record in records]),
        searches=known_mean([episode["searches"] for episode in figures]),
        turns=known_mean([episode["turns"] for episode in figures]),
    )


def make_report(run: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Write `results.json`, `report.md` and `report.png` into `run`, and return the results.

    `facts` (recipe, seed, seconds, ...) are added to the results. Raises DataError if the run has recorded
    fewer than two validations.
    """
    validation, training = (records_by_step(run / "trajectories" / split) for split in ("val", "train"))
    if len(validation) < 2:
        raise DataError(
            f"{run} has {len(validation)} validation(s), a report needs one before and one after training: "
            "set trainer.val_before_train=true and trainer.test_freq, and train again"
        )
    held_out = {step: summarise(records) for step, records in validation.items()}
    scores = {step: [record["rewards"]["score"] for record in records] for step, records in training.items()}
    reward = {step: known_mean(values) for step, values in scores.items()}
    results = {
        **facts,
        "held_out_questions": len(next(iter(validation.values()))),
        "trajectories": sum(len(records) for records in training.values()),
        "held_out": {step: means.labelled() for step, means in held_out.items()},
        "reward": reward,
    }
    write_json(run / "results.json", results)
    write_text(run / "report.md", markdown(results) + "\n")
    draw(held_out, reward, results["held_out_questions"], run / "report.png")
    return results


def markdown(results: dict[str, Any]) -> str:
    """Format the results before and after the training as a table in Markdown. A kind of question that one of
    these validations lacks, since it was interrupted, has no row."""
    steps = sorted(results["held_out"])
    before, after = results["held_out"][steps[0]], results["held_out"][steps[-1]]
    page = Page().text(
        f"{results['held_out_questions']} held-out questions, greedy; {steps[-1]} steps, "
        f"{results['trajectories']} training trajectories"
    )
    figures = {name: (before[name], after[name]) for name in before if name in after}
    rows = [
        [name, number(start, 2), number(end, 2), number(end - start, 2, signed=True)]
        for name, (start, end) in figures.items()
    ]
    return str(page.table(["", "before", "after", ""], rows))


def draw(
    held_out: Mapping[int, HeldOutMeans], reward: Mapping[int, float], questions: int, path: Path
) -> list[Path]:
    """Draw the held-out exact match, the mean reward, and searches and turns over the steps.

    `questions` is the number of held-out questions. Returns the files that were written: none without
    matplotlib.
    """

    def paint(match: pictures.Axes, rewards: pictures.Axes, search: pictures.Axes) -> None:
        _draw_exact_match(match, held_out, questions)
        rewards.plot(list(reward), list(reward.values()), color=pictures.GREY)
        rewards.set(title="Training, sampled", ylabel="mean reward of a step")
        searches = [(step, means.searches) for step, means in sorted(held_out.items())]
        turns = [(step, means.turns) for step, means in sorted(held_out.items())]
        pictures.line(search, searches, "searches", pictures.BLUE)
        pictures.line(search, turns, "turns", pictures.ORANGE)
        search.set(title="Held-out questions, greedy", ylabel="for each question", ylim=(0, None))
        search.legend(frameon=False, fontsize=8, loc="lower right")
        for axes in (match, rewards, search):
            axes.set_xlabel("training step")
            pictures.whole_steps(axes)

    return pictures.draw(path, paint, size=(9.6, 3.4), panels=3, ratios=[4, 3, 3])


def _draw_exact_match(axes: pictures.Axes, held_out: Mapping[int, HeldOutMeans], questions: int) -> None:
    """Draw the exact match for each kind of question, and for all questions with its 95 % interval."""
    steps = sorted(held_out)
    for kind, color in zip(held_out[steps[0]].em_by_kind, cycle(pictures.SERIES), strict=False):
        points = [(step, ems[kind]) for step in steps if kind in (ems := held_out[step].em_by_kind)]
        pictures.line(axes, points, kind.replace("_", "-"), color)
    overall = [held_out[step].em for step in steps]
    low, high = zip(*(wilson_interval(share, questions) for share in overall), strict=True)
    pictures.line(axes, [*zip(steps, overall, strict=True)], "all", "black", "s--")
    axes.fill_between(steps, low, high, color="black", alpha=0.12, linewidth=0, label="all, 95 %")
    axes.set(title="Held-out questions, greedy", ylabel="exact match", ylim=(0, 1.03))
    axes.legend(frameon=False, fontsize=8, loc="lower right")


class ReportArguments(Arguments):
    """The arguments of `python -m rag_r1.demo.report`."""

    run: Path = argument("folder of a demo run")


@command_main(ValueError, OSError)
def main(argv: Sequence[str] | None = None) -> int:
    """Make the report of a finished run again, and print its table; returns the exit status."""
    args = read_arguments(
        ReportArguments, argv, prog="python -m rag_r1.demo.report", description=__doc__.split("\n\n")[0]
    )
    results_file = args.run / "results.json"
    earlier = read_json_object(results_file) if results_file.exists() else {}
    facts = {name: earlier[name] for name in ("recipe", "seed", "seconds") if name in earlier}
    print(markdown(make_report(args.run, facts)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
