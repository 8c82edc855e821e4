"""Writes the report on the real small model: tables by kind of question, step and baseline, and a picture.

    python -m examples.real_small.report --grpo outputs/real-small/grpo --evals evals/real --out report

The command reads the files of trainings and evaluations, and writes `real_model.md` (tables),
`real_model.png` (a picture, if matplotlib is installed) and, with --trajectories, `trajectories.md` (ten
trajectories of one evaluation, drawn at random). An evaluation is a folder EVALS/MODEL/QUESTIONS of `rag-r1
eval`; MODEL and QUESTIONS label its row in the tables. Questions made by `rag-r1 passage-questions` have
their kind in their id; other questions have no kind.
"""

from __future__ import annotations

import random
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from data_process.passage_questions.questions import KINDS
from rag_r1.agent.records import read_records, records_by_step
from rag_r1.evaluation.report.estimates import known_mean, wilson_interval
from rag_r1.io.atomic_files import write_text
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.options.out_folder import check_out
from rag_r1.runs import pictures
from rag_r1.runs.errors import RunError
from rag_r1.runs.markdown import Page, cell, integer, number
from rag_r1.runs.rollout_metrics import logger_files
from rag_r1.runs.start_checks import StartChecks
from rag_r1.training.metrics_files import MetricsFile

Record = Mapping[str, Any]
#: The name of an evaluation: (MODEL, QUESTIONS).
EvalName = tuple[str, str]
#: Number of trajectories that are printed.
_SAMPLE_SIZE = 10
_KIND = re.compile("|".join(KINDS))
#: Metric of a training step in veRL's log -> its label in the table.
_STEP_FIGURES = {
    "timing_s/step": "a step, s",
    "timing_s/gen": "generating",
    "timing_s/old_log_prob": "log-probs of the actor",
    "timing_s/ref": "log-probs of the reference",
    "timing_s/update_actor": "update",
    "timing_s/update_weights": "weights to vLLM",
    "perf/throughput": "tokens/s",
    "actor/perf/max_memory_reserved_gb": "memory of the actor, GB",
    "training/rollout_probs_diff_mean": "difference of probability, vLLM and actor",
}


class ReportArguments(Arguments):
    """The trainings and evaluations to report, and the folder for the report."""

    grpo: list[Path] = argument("folder of a GRPO training, one for each seed; may be repeated", "DIR")
    evals: Path | None = argument("folder of evaluations, EVALS/MODEL/QUESTIONS", "DIR", default=None)
    trajectories: str | None = argument(
        "evaluation from which ten trajectories are printed, MODEL/QUESTIONS", default=None
    )
    out: Path = argument("folder for the tables and the picture", "DIR")
    seed: int = argument("seed by which the trajectories are drawn", default=0)


@command_main(RunError, ValueError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    prog = "python -m examples.real_small.report"
    args = read_arguments(ReportArguments, arguments, prog=prog, description=__doc__, check=_read_inputs)
    curves, evaluated, shown = _read_inputs(args)
    page = Page().heading("By step").table(*curve_table(curves)).heading("A step")
    page.table(*step_table([training_log(run) for run in args.grpo]))
    for questions in sorted({questions for _, questions in evaluated}):
        rows = {model: records for (model, name), records in evaluated.items() if name == questions}
        page.heading(f"Questions: {cell(questions)}").table(*kinds_table(rows))
    args.out.mkdir(parents=True, exist_ok=True)
    write_text(args.out / "real_model.md", f"{page}\n")
    has_picture = bool(draw(curves, args.out / "real_model.png"))
    if shown:
        write_text(args.out / "trajectories.md", "\n\n".join(map(as_text, shown)) + "\n")
    print(f"{'tables and picture' if has_picture else 'tables'}: {args.out}")
    return 0


def _read_inputs(
    args: ReportArguments,
) -> tuple[list[dict[int, list[Record]]], dict[EvalName, list[Record]], list[Record]]:
    """Return the validations of each training, the evaluations, and the trajectories to print. Raises
    StartError with the problems of all of them and of --out."""
    with StartChecks() as checks:
        checks.run(check_out, args.out)
        curves = [checks.run(validations, run) or {} for run in args.grpo]
        evaluated = checks.run(evaluations, args.evals) if args.evals else {}
        has_evals = args.trajectories and evaluated is not None  # else --evals has a problem already
        shown = checks.run(choose_trajectories, args, evaluated or {}) if has_evals else []
    return curves, evaluated or {}, shown or []


def choose_trajectories(args: ReportArguments, evaluated: Mapping[EvalName, list[Record]]) -> list[Record]:
    """Draw `_SAMPLE_SIZE` records of the evaluation --trajectories, or all if it has fewer. Raises ValueError
    if there is no such evaluation."""
    model, _, questions = str(args.trajectories).partition("/")
    if (records := evaluated.get((model, questions))) is None:
        names = ", ".join(map("/".join, evaluated))
        remedy = f"give one of {names}" if names else "give --evals, the folder that has it"
        raise ValueError(f"--trajectories {args.trajectories}: there is no such evaluation: {remedy}")
    return random.Random(args.seed).sample(records, min(_SAMPLE_SIZE, len(records)))


def validations(run: Path) -> dict[int, list[Record]]:
    """Return the records of a training's validations, by step. Raises ValueError if there are none."""
    if not run.is_dir():
        raise ValueError(f"--grpo {run}: there is no such folder: give that of a training")
    trajectories = run / "trajectories"
    folder = next((trajectories / name for name in ("test", "val") if (trajectories / name).is_dir()), run)
    if not (steps := records_by_step(folder)):
        raise ValueError(f"--grpo {run}: {folder} has no records of a validation: set trainer.test_freq")
    return {step: list(records) for step, records in steps.items()}


def training_log(run: Path) -> dict[int, Mapping[str, float]]:
    """Return the metrics in veRL's log by step.

    If a step was repeated after a kill, the last run counts; a line that the kill cut off is skipped.
    """
    steps: dict[int, Mapping[str, float]] = {}
    for file in logger_files(run):
        steps.update(MetricsFile(file).new_lines())
    return steps


def evaluations(folder: Path) -> dict[EvalName, list[Record]]:
    """Return the records of each evaluation, by (MODEL, QUESTIONS). Raises ValueError if there are none."""
    records_by_name = {
        (file.parts[-4], file.parts[-3]): list(read_records(file))
        for file in sorted(folder.glob("*/*/trajectories/records.jsonl"))
    }
    if not records_by_name:
        message = f"--evals {folder} has no MODEL/QUESTIONS/trajectories/records.jsonl"
        raise ValueError(f"{message}: give a folder of finished `rag-r1 eval` runs")
    return records_by_name


def by_kind(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Return the records of each kind of question, in the order of KINDS; {} if their ids name no kind."""
    kinds: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if match := _KIND.search(record["id"]):
            kinds[match[0]].append(record)
    return {kind: kinds[kind] for kind in KINDS if kinds[kind]}


def exact_match(records: Iterable[Record]) -> float:
    """Return the share of questions whose answer is an exact match; those without a score are left out."""
    return known_mean([record["rewards"].get("em") for record in records])


def queries(records: Iterable[Record]) -> float:
    """Return the mean number of queries for a question."""
    return known_mean([float(sum(len(turn["calls"]) for turn in record["turns"])) for record in records])


def curve_table(curves: Sequence[Mapping[int, list[Record]]]) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table of EM and queries of each kind by step. A cell has a value for each
    training, which is "–" if it has no question of the kind."""
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    rows = []
    for step in steps:
        groups = [by_kind(curve[step]) for curve in curves]
        row = [str(step), ", ".join(number(exact_match(curve[step])) for curve in curves)]
        for kind in KINDS:
            by_training = [group.get(kind) for group in groups]
            row += [
                ", ".join(number(exact_match(records), 2) if records else "–" for records in by_training),
                ", ".join(number(queries(records), 1) if records else "–" for records in by_training),
            ]
        rows.append(row)
    return ["step", "EM", *(name for kind in KINDS for name in (kind.replace("_", "-"), "queries"))], rows


def step_table(logs: Sequence[Mapping[int, Mapping[str, float]]]) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table of medians over the training steps, with a value per training."""
    rows = []
    for key, label in _STEP_FIGURES.items():
        medians = [
            statistics.median(values)
            for log in logs
            if (values := [float(step[key]) for step in log.values() if key in step])
        ]
        if medians:
            decimals = 5 if "diff" in key else 2
            rows.append([label, ", ".join(number(value, decimals) for value in medians)])
    return ["", "median over the steps"], rows


def kinds_table(rows: Mapping[str, list[Record]]) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table of models: EM with its 95 % interval, EM of each kind, queries."""
    table = []
    for name, records in rows.items():
        share, groups = exact_match(records), by_kind(records)
        scored = sum(record["rewards"].get("em") is not None for record in records)
        low, high = wilson_interval(share, max(scored, 1))  # without scores, the share and the ends are nan
        ems = [number(exact_match(groups[kind]), 2) if kind in groups else "–" for kind in KINDS]
        interval = f"{number(share)} [{number(low)}, {number(high)}]"
        table.append([cell(name), integer(len(records)), interval, *ems, number(queries(records), 2)])
    return ["", "questions", "EM", *(kind.replace("_", "-") for kind in KINDS), "queries"], table


def draw(curves: Sequence[Mapping[int, list[Record]]], path: Path) -> list[Path]:
    """Draw held-out EM and queries of each kind by step, with a line for each training.

    Returns the paths of the pictures.
    """

    def paint(em_axes: pictures.Axes, query_axes: pictures.Axes) -> None:
        """Draw exact match in one panel and queries in the other, with a line for each training and kind."""
        for curve in curves:
            steps = sorted(curve)
            groups = [by_kind(curve[step]) for step in steps]
            for kind, color in zip(KINDS, pictures.SERIES, strict=False):
                label = kind.replace("_", "-")
                for axes, figure in ((em_axes, exact_match), (query_axes, queries)):
                    by_step = zip(steps, groups, strict=True)
                    points = [(step, figure(group[kind])) for step, group in by_step if kind in group]
                    pictures.line(axes, points, label, color)
            overall = [(step, exact_match(curve[step])) for step in steps]
            pictures.line(em_axes, overall, "all", "black", "s--")
        em_axes.set(title="Held-out questions, greedy", ylabel="exact match", ylim=(0, 1.03))
        em_axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        query_axes.set(title="Held-out questions, greedy", ylabel="queries a question", ylim=(0, None))
        for axes in (em_axes, query_axes):
            axes.set_xlabel("step of GRPO")
            pictures.whole_steps(axes)

    return pictures.draw(path, paint, size=(9.6, 3.6), panels=2)


def as_text(record: Record) -> str:
    """Return a trajectory as indented text.

    The text has the question, whether the answer is right, and the turns with the titles of their passages.
    """
    em = record["rewards"].get("em")
    verdict = "right" if em else f"{'not judged' if em is None else 'wrong'}; right: {record['golds'][0]}"
    lines = [f"{record['question']} ({verdict})"]
    for turn in record["turns"]:
        lines += turn["text"].splitlines()
        for call in turn["calls"]:
            titles = [document["contents"].partition("\n")[0] for document in call["documents"] or ()]
            lines.append(f"    {call['arguments'].get('query')} -> {', '.join(titles) or 'nothing'}")
    return indent("\n".join(lines), "    ")


if __name__ == "__main__":
    sys.exit(main())
