"""Writes the report of a run: `report.json`, `report.md` and two plots.

Everything is computed from the records, so a report can be made again at any time, and it does not depend on
the order of the records. Every figure is given for each data source, as the mean over the sources (in which
each source counts once, as in the papers' tables) and for all questions together, with a bootstrap interval
(bootstrap.py). The steps are run_table.py (records to table), measures.py (table to sums), this module (sums
to report.json) and report_markdown.py.

    rag-r1 eval report outputs/run
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from pydantic_settings import CliPositionalArg

from rag_r1.data.annotations import read_answerable, read_supporting
from rag_r1.data.files.bad_rows import HELP, BadRows
from rag_r1.evaluation.report.bootstrap import DEFAULT_BOOTSTRAP, Bootstrap, Estimate
from rag_r1.evaluation.report.measures import by_source, measures_of
from rag_r1.evaluation.report.published_results import in_paper_order
from rag_r1.evaluation.report.run_table import RunTable, read_run
from rag_r1.io.atomic_files import write_json, write_text
from rag_r1.io.errors import DataError
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, From0Count, Positive, argument, read_arguments
from rag_r1.options.out_folder import check_out
from rag_r1.rollouts.provenance import Provenance
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks

REPORT_JSON, REPORT_MD = "report.json", "report.md"
#: The errors that the files of a run may cause. Their messages say what to do.
WRONG_RUN = (RunError, DataError, OSError)


def make_report(run: Path, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> dict[str, Any]:
    """Write the report of a run into its folder, and return the content of report.json. Raises one of
    WRONG_RUN if the run cannot be read; nothing is written then."""
    card = Provenance.read(run)
    return write_report(read_run(run, mask=card.mask if card else None), card, run, bootstrap)


def write_report(
    table: RunTable, card: Provenance | None, out: Path, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> dict[str, Any]:
    """Write the report of a run that has been read, and return the content of report.json. Raises OSError."""
    from rag_r1.evaluation.report.plots import draw_report
    from rag_r1.evaluation.report.report_markdown import markdown

    report = report_of(table, card, bootstrap)
    out.mkdir(parents=True, exist_ok=True)
    pictures = draw_report(report, table, out)
    write_json(out / REPORT_JSON, report)
    write_text(out / REPORT_MD, markdown(report, pictures) + "\n")
    return report


def report_of(table: RunTable, card: Provenance | None, bootstrap: Bootstrap) -> dict[str, Any]:
    """Return the content of report.json, with plain JSON values and numbers rounded to six decimals."""
    measures = measures_of(table)
    sums, episodes = by_source(table, measures)
    by_name, mean, overall = bootstrap.estimates(sums, [measure.share for measure in measures])
    figures: dict[str, Any] = {}
    for i, measure in enumerate(measures):
        questions = {name: int(np.count_nonzero(sums[name].denominators[:, i] > 0)) for name in sums}
        played = {name: int(count) for name, count in zip(sums, episodes[:, i], strict=True)}
        totals = sum(questions.values()), sum(played.values())
        figures[measure.name] = {
            "label": measure.label,
            "section": measure.section,
            "decimals": measure.decimals,
            "sources": {
                name: figure(by_name[name], i, questions[name], played[name]) for name in in_paper_order(sums)
            },
            "mean": figure(mean, i, *totals),
            "all": figure(overall, i, *totals),
        }
    return {
        "format": 1,
        "interval": {
            "kind": "percentile bootstrap, stratified by source, clustered by question",
            **bootstrap.description(),
        },
        "counts": counts(table, card),
        "figures": figures,
        "card": card.model_dump(mode="json") if card else None,
    }


def counts(table: RunTable, card: Provenance | None) -> dict[str, Any]:
    """Return the numbers of questions, episodes, failures, final statuses and causes of wrong answers, for
    each source and for all sources together, and the numbers of questions in the data, of those without a
    record (both None without a card), of bad records and of records that were played again."""
    sources = in_paper_order(key[0] for key in table.keys)
    groups = {name: [i for i, key in enumerate(table.keys) if key[0] == name] for name in sources}
    questions, _ = table.question_indices()
    expected = card.rows if card else None
    return {
        "sources": {name: _counts(table, episodes) for name, episodes in groups.items()},
        "all": _counts(table, range(len(table.keys))),
        "questions_in_data": expected,
        "questions_without_record": None if expected is None else max(0, expected - len(questions)),
        "bad_records": table.bad.count,
        "played_again": table.replaced,
    }


def figure(estimate: Estimate, i: int, questions: int, episodes: int | None = None) -> dict[str, Any]:
    """Return figure number `i` of an estimate as report.json has it, with None for unknown values."""
    names = ("value", "low", "high")
    values: dict[str, Any] = {name: rounded(float(getattr(estimate, name)[i])) for name in names}
    values["questions"] = questions
    return values if episodes is None else values | {"episodes": episodes}


def rounded(value: float) -> float | None:
    """Round to six decimals, which hides the effect of the order of summation. Returns None for nan."""
    return None if math.isnan(value) else round(value, 6) + 0.0  # which turns -0.0 into 0.0


def _counts(table: RunTable, episodes: Sequence[int]) -> dict[str, Any]:
    """Return the numbers of `counts` for some episodes, which are given by their indices in the table."""
    failed = [i for i in episodes if table.failed[i]]
    scored = [i for i in episodes if not table.failed[i]]
    return {
        "questions": len({table.keys[i][:2] for i in episodes}),
        "episodes": len(episodes),
        "failed": len(failed),
        "failed_by_kind": _tally(kind for i in failed for kind in table.failures[i]),
        # A spent budget is not a failure; the statuses show it.
        "scored_with_failure": _tally(kind for i in scored for kind in table.failures[i] if kind != "budget"),
        "causes": _tally(cause for i in episodes if (cause := table.causes[i]) is not None),
        "statuses": _tally(table.statuses[i] for i in episodes),
    }


def _tally(values: Iterable[str]) -> dict[str, int]:
    """Return the number of occurrences of each value, sorted by value."""
    return dict(sorted(Counter(values).items()))


class ReportArguments(Arguments):
    """The run, its files of annotations, and the parameters of its intervals."""

    run: CliPositionalArg[Path] = argument("folder of a finished run", "RUN")
    out: Path | None = argument("folder for the report (default: the run's)", "DIR", default=None)
    answerable: Path | None = argument("ids of questions that the corpus can answer", "FILE", default=None)
    supporting: Path | None = argument("the passages that each question needs", "FILE", default=None)
    step: From0Count | None = argument("step of the training whose validation is reported", "N", default=None)
    resamples: Positive = argument("replicates of the bootstrap", "N", default=Bootstrap.resamples)
    seed: Annotated[int, Field(ge=0)] = argument("seed of the bootstrap", "N", default=0)
    skip_bad_rows: bool = argument(HELP, default=False)
    check_only: bool = argument(CHECK_ONLY, default=False)


@command_main(*WRONG_RUN)
def main(arguments: Sequence[str] | None = None, prog: str = "rag-r1 eval report") -> int:
    """Make a report, print it and return the exit status."""
    args = read_arguments(
        ReportArguments, arguments, prog=prog, description=__doc__.split("\n\n")[0], check=_check_start
    )
    card, table = _check_start(args)
    out = args.out or args.run
    if args.check_only:
        print(f"all checks passed: the report of {len(table.keys):,} episodes would be written into {out}")
        return 0
    write_report(table, card, out, Bootstrap(resamples=args.resamples, seed=args.seed))
    print((out / REPORT_MD).read_text(encoding="utf-8"))
    return 0


def _check_start(args: ReportArguments) -> tuple[Provenance | None, RunTable]:
    """Return the run's provenance and its records. Raises StartError with all problems."""
    with StartChecks() as checks:
        card = checks.run(Provenance.read, args.run)
        # A file that cannot be used is left out, so that its problem does not hide those of the run.
        answerable = checks.run(_usable_file, args.answerable, read_answerable, args)
        supporting = checks.run(_usable_file, args.supporting, read_supporting, args)
        table = checks.run(
            read_run,
            args.run,
            mask=card.mask if card else None,
            answerable=answerable,
            supporting=supporting,
            step=args.step,
            skip_bad_rows=args.skip_bad_rows,
        )
        checks.run(check_out, args.out or args.run, flag="--out" if args.out else "without --out, RUN")
    assert table is not None  # or the checks have raised
    return card, table


def _usable_file(path: Path | None, read: Callable[..., object], args: ReportArguments) -> Path | None:
    """Return the path of a file of annotations after reading it once. Raises DataError if it cannot be read,
    or has bad rows that are not skipped."""
    if path is not None:
        bad = BadRows()
        read(path, bad)
        bad.refuse(args.skip_bad_rows, "nothing was written")
    return path


if __name__ == "__main__":
    sys.exit(main())
