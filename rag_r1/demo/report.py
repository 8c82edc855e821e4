"""Writes the report of a demo run: a table, a plot and a JSON file of what changed.

Everything is computed from the trajectory records that the run wrote (`<dir>/val/step_*.jsonl` and
`<dir>/train/step_*.jsonl`), so `python -m rag_r1.demo.report --run DIR` can make the same report again at any
time.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_r1.agent.records import records_by_step, summary, trajectory_of
from rag_r1.demo.world import KINDS
from rag_r1.evaluation.report.statistics import mean, wilson_interval
from rag_r1.io.atomic_files import write_json, write_text
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.runs import pictures
from rag_r1.runs.markdown import Page

#: Rows of the table after the kinds: a label, and the figure of an episode (agent/records.py). No times: the
#: validation before training includes the engine's first compilation, so they cannot be compared.
_MEASURES = {"searches a question": "searches", "turns a question": "turns"}


def summarise(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """EM by question kind and over all, and how the questions were searched: means over records."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for record in records:
        by_kind[record["data_source"].rpartition("/")[2]].append(record["rewards"]["em"])
    kinds = dict.fromkeys([*KINDS, *sorted(by_kind)])  # in the world's order, any other kind after them
    table = {f"EM {kind}": mean(by_kind[kind]) for kind in kinds if kind in by_kind}
    table["EM all"] = mean([record["rewards"]["em"] for record in records])
    figures = [summary(trajectory_of(record)) for record in records]
    table |= {label: mean([episode[name] for episode in figures]) for label, name in _MEASURES.items()}
    return table


def make_report(run: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Write `results.json`, `report.md` and `report.png` into `run`, and return the results.

    `facts` (recipe, seed, seconds, ...) are added to the results. Raises ValueError if there is nothing to
    report.
    """
    validation, training = (records_by_step(run / "trajectories" / split) for split in ("val", "train"))
    if len(validation) < 2:
        raise ValueError(
            f"{run} has {len(validation)} validation(s), a report needs one before and one after training"
        )
    results = {
        **facts,
        "held_out_questions": len(next(iter(validation.values()))),
        "trajectories": sum(len(records) for records in training.values()),
        "held_out": {step: summarise(records) for step, records in validation.items()},
        "reward": {
            step: mean([r["rewards"]["score"] for r in records]) for step, records in training.items()
        },
    }
    write_json(run / "results.json", results)
    write_text(run / "report.md", markdown(results) + "\n")
    draw(results, run / "report.png")
    return results


def markdown(results: dict[str, Any]) -> str:
    """The table: held-out questions, greedy, before and after training."""
    steps = sorted(results["held_out"])
    before, after = results["held_out"][steps[0]], results["held_out"][steps[-1]]
    page = Page().text(
        f"{results['held_out_questions']} held-out questions, greedy; {steps[-1]} steps, "
        f"{results['trajectories']} training trajectories"
    )
    rows = [
        [name, f"{before[name]:.2f}", f"{after[name]:.2f}", f"{after[name] - before[name]:+.2f}"]
        for name in before
    ]
    return str(page.table(["", "before", "after", ""], rows))


def draw(results: dict[str, Any], path: Path) -> list[Path]:
    """The picture, by step: held-out EM by kind (with the 95 % interval of all), reward, searches, turns."""
    steps = sorted(results["held_out"])
    held_out = [results["held_out"][step] for step in steps]
    kinds = [key for key in held_out[0] if key.startswith("EM ") and key != "EM all"]

    def paint(match: Any, reward: Any, search: Any) -> None:
        for kind, color in zip(kinds, pictures.SERIES, strict=False):
            name = kind.removeprefix("EM ").replace("_", "-")
            pictures.line(match, [*zip(steps, [row[kind] for row in held_out], strict=True)], name, color)
        overall = [row["EM all"] for row in held_out]
        low, high = zip(
            *(wilson_interval(share, results["held_out_questions"]) for share in overall), strict=True
        )
        pictures.line(match, [*zip(steps, overall, strict=True)], "all", "black", "s--")
        match.fill_between(steps, low, high, color="black", alpha=0.12, linewidth=0, label="all, 95 %")
        match.set(title="Held-out questions, greedy", ylabel="exact match", ylim=(0, 1.03))
        match.legend(frameon=False, fontsize=8, loc="lower right")
        reward.plot(list(results["reward"]), list(results["reward"].values()), color=pictures.GREY)
        reward.set(title="Training, sampled", ylabel="mean reward of a step")
        for name, color in zip(_MEASURES, (pictures.BLUE, pictures.ORANGE), strict=True):
            label = name.removesuffix(" a question")
            pictures.line(search, [*zip(steps, [row[name] for row in held_out], strict=True)], label, color)
        search.set(title="Held-out questions, greedy", ylabel="for each question", ylim=(0, None))
        search.legend(frameon=False, fontsize=8, loc="lower right")
        for axes in (match, reward, search):
            axes.set_xlabel("training step")
            pictures.whole_steps(axes)

    return pictures.draw(path, paint, size=(9.6, 3.4), panels=3, ratios=[4, 3, 3])


class ReportArguments(Arguments):
    """Whose report."""

    run: Path = argument("folder of a demo run")


@command_main(ValueError, OSError)
def main(argv: Sequence[str] | None = None) -> int:
    args = read_arguments(
        ReportArguments, argv, prog="python -m rag_r1.demo.report", description=__doc__.split("\n\n")[0]
    )
    results_file = args.run / "results.json"
    earlier = json.loads(results_file.read_text()) if results_file.exists() else {}
    facts = {name: earlier[name] for name in ("recipe", "seed", "seconds") if name in earlier}
    print(markdown(make_report(args.run, facts)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
