"""Writes the report of a run: `report.json`, `report.md` and two plots.

Everything is computed from the records, so the report can be made again at any time, and the order of the
records does not change a byte of it. Every figure stands for each data source, as the mean over the sources
(in which each counts once, as in the papers' tables) and for all questions together, with a bootstrap
interval (bootstrap.py).

    rag-r1 eval report outputs/run
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from pydantic_settings import CliPositionalArg

from rag_r1.agent.records import RecordError
from rag_r1.data.errors import DataError
from rag_r1.data.files.bad_rows import HELP
from rag_r1.evaluation.report.bootstrap import Bootstrap, Estimate, RatioSums
from rag_r1.evaluation.report.measures import Measure, by_source, measures_of
from rag_r1.evaluation.report.published_results import in_paper_order
from rag_r1.evaluation.report.run_table import RunTable, TableError, read_run
from rag_r1.io.atomic_files import write_json, write_text
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.rollouts.provenance import Provenance
from rag_r1.rollouts.provenance_facts import ProvenanceError

REPORT_JSON, REPORT_MD = "report.json", "report.md"
#: What can be wrong with the files of a run; the message says what to do.
WRONG_RUN = (TableError, DataError, RecordError, ProvenanceError, OSError)


@dataclass(frozen=True)
class ReportOptions:
    """What a report reads beside the records, and its bootstrap."""

    answerable: Path | None = None
    supporting: Path | None = None
    step: int | None = None
    skip_bad_rows: bool = False
    bootstrap: Bootstrap = Bootstrap()


def make_report(run: Path, options: ReportOptions | None = None, out: Path | None = None) -> dict[str, Any]:
    """Write the report of a run folder into `out` (default: into the folder); returns what report.json has.

    Raises one of WRONG_RUN, and then writes nothing.
    """
    from rag_r1.evaluation.report.plots import draw_report
    from rag_r1.evaluation.report.report_markdown import markdown

    options = options or ReportOptions()
    card = Provenance.read(run)
    table = read_run(
        run,
        mask=card.mask if card else None,
        answerable=options.answerable,
        supporting=options.supporting,
        step=options.step,
        skip_bad_rows=options.skip_bad_rows,
    )
    report = report_of(table, card, options.bootstrap)
    out = out or run
    out.mkdir(parents=True, exist_ok=True)
    pictures = draw_report(report, table, out)
    write_json(out / REPORT_JSON, report)
    write_text(out / REPORT_MD, markdown(report, pictures) + "\n")
    return report


def report_of(table: RunTable, card: Provenance | None, bootstrap: Bootstrap) -> dict[str, Any]:
    """The content of report.json: plain JSON values, numbers rounded to six digits."""
    measures = measures_of(table)
    sums, episodes = by_source(table, measures)
    each, mean, whole = bootstrap.estimates(sums, [measure.share for measure in measures])
    names = sorted(sums)
    figures: dict[str, Any] = {}
    for i, measure in enumerate(measures):
        of_sources = {
            name: figure(each[name], i, _questions([sums[name]], i), int(episodes[names.index(name), i]))
            for name in in_paper_order(names)
        }
        questions = _questions(list(sums.values()), i)
        total = int(episodes[:, i].sum())
        figures[measure.name] = {
            **_description(measure),
            "sources": of_sources,
            "mean": figure(mean, i, questions, total),
            "all": figure(whole, i, questions, total),
        }
    return {
        "format": 1,
        "interval": {
            "kind": "percentile bootstrap, stratified by source, clustered by question",
            "level": bootstrap.level,
            "resamples": bootstrap.resamples,
            "seed": bootstrap.seed,
        },
        "counts": counts(table, card),
        "figures": figures,
        "card": card.model_dump(mode="json") if card else None,
    }


def counts(table: RunTable, card: Provenance | None) -> dict[str, Any]:
    """Questions, episodes, failures and end statuses, of each source and of all."""
    sources = in_paper_order(key[0] for key in table.keys)
    groups = {name: [i for i, key in enumerate(table.keys) if key[0] == name] for name in sources}
    questions, _ = table.asked()
    rows = card.rows if card else None
    return {
        "sources": {name: _counted(table, of) for name, of in groups.items()},
        "all": _counted(table, range(len(table.keys))),
        "questions_in_data": rows,
        "questions_without_record": None if rows is None else max(0, rows - len(questions)),
        "bad_records": table.bad.count,
        "played_again": table.left_out,
    }


def figure(estimate: Estimate, i: int, questions: int, episodes: int | None = None) -> dict[str, Any]:
    """One figure of report.json: null for what there is not."""
    ends = (("value", estimate.value), ("low", estimate.low), ("high", estimate.high))
    found: dict[str, Any] = {name: rounded(float(values[i])) for name, values in ends}
    found["questions"] = questions
    return found if episodes is None else found | {"episodes": episodes}


def rounded(value: float) -> float | None:
    """To six digits, so that no byte depends on the order of a sum; None for nan."""
    return None if math.isnan(value) else round(value, 6) + 0.0


def _description(measure: Measure) -> dict[str, Any]:
    return {"label": measure.label, "section": measure.section, "decimals": measure.decimals}


def _questions(sums: Sequence[RatioSums], i: int) -> int:
    return sum(int(np.count_nonzero(one.denominators[:, i] > 0)) for one in sums)


def _counted(table: RunTable, of: Sequence[int]) -> dict[str, Any]:
    failed = [i for i in of if table.failed[i]]
    shown = [i for i in of if not table.failed[i]]
    return {
        "questions": len({table.keys[i][:2] for i in of}),
        "episodes": len(of),
        "failed": len(failed),
        "failed_by_kind": _tally(kind for i in failed for kind in table.failures[i]),
        # A spent budget is not one: it shows in the statuses.
        "scored_with_failure": _tally(k for i in shown for k in table.failures[i] if k != "budget"),
        "statuses": _tally(table.statuses[i] for i in of),
    }


def _tally(values: Any) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


class ReportArguments(Arguments):
    """Whose report."""

    run: CliPositionalArg[Path] = argument("folder of a finished run", "RUN")
    out: Path | None = argument("folder for the report (default: the run's)", "DIR", default=None)
    answerable: Path | None = argument("ids of questions that the corpus can answer", "FILE", default=None)
    supporting: Path | None = argument("the passages that each question needs", "FILE", default=None)
    step: int | None = argument("of a training's validations, the one at this step", "N", default=None)
    resamples: Positive = argument("replicates of the bootstrap", "N", default=2000)
    seed: Annotated[int, Field(ge=0)] = argument("of the bootstrap", "N", default=0)
    skip_bad_rows: bool = argument(HELP, default=False)


@command_main(*WRONG_RUN)
def main(arguments: Sequence[str] | None = None, prog: str = "rag-r1 eval report") -> int:
    """Make a report and print it; returns the exit status."""
    args = read_arguments(ReportArguments, arguments, prog=prog, description=__doc__.split("\n\n")[0])
    options = ReportOptions(
        answerable=args.answerable,
        supporting=args.supporting,
        step=args.step,
        skip_bad_rows=args.skip_bad_rows,
        bootstrap=Bootstrap(resamples=args.resamples, seed=args.seed),
    )
    make_report(args.run, options, args.out)
    print(((args.out or args.run) / REPORT_MD).read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
