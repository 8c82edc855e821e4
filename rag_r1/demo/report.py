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
    table |= {label: mean([of[name] for of in figures]) for label, name in _MEASURES.items()}
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
    """The picture: the learning curve, EM by kind and searches, before and after."""
    steps = sorted(results["held_out"])
    before, after = results["held_out"][steps[0]], results["held_out"][steps[-1]]
    kinds = [key for key in before if key.startswith("EM ")]
    colors = (pictures.GREY, pictures.ORANGE)

    def paint(curve: Any, bars: Any, search: Any) -> None:
        reward = results["reward"]
        curve.plot(
            list(reward), list(reward.values()), color=pictures.GREY, label="training reward (sampled)"
        )
        held_out = [(step, results["held_out"][step]["EM all"]) for step in steps]
        pictures.line(curve, held_out, "held-out EM (greedy)", pictures.BLUE)
        pictures.whole_steps(curve)
        curve.set(xlabel="step", ylim=(0, 1.02), title="Learning to search")
        curve.legend(frameon=False, loc="lower right")
        for axes, keys in ((bars, kinds), (search, list(_MEASURES))):
            names = [k.removeprefix("EM ").replace("_", "-").removesuffix(" a question") for k in keys]
            pictures.grouped_bars(axes, names, [[of[k] for k in keys] for of in (before, after)], colors)
        bars.set(ylim=(0, 1.3), yticks=[0, 0.25, 0.5, 0.75, 1], title="Held-out exact match by question kind")
        bars.legend(["before", "after"], frameon=False, ncols=2, loc="upper center")
        search.set(title="Per question")

    return pictures.draw(path, paint, size=(12, 3.6), panels=3, ratios=[4, 4, 2])


def mean(values: Sequence[float | None]) -> float:
    """The mean over the known values: a trajectory that ended with a failure has no reward."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else float("nan")


class ReportArguments(Arguments):
    """Whose report."""

    run: Path = argument("folder of a demo run")


@command_main(ValueError, OSError)
def main(argv: Sequence[str] | None = None) -> int:
    args = read_arguments(
        ReportArguments, argv, prog="python -m rag_r1.demo.report", description=__doc__.split("\n\n")[0]
    )
    old = args.run / "results.json"
    before = json.loads(old.read_text()) if old.exists() else {}
    facts = {name: before[name] for name in ("recipe", "seed", "seconds") if name in before}
    print(markdown(make_report(args.run, facts)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
