"""`rag-r1 retriever select`: selects training rows from recorded scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.options.declare import Constraint
from rag_r1.options.out_folder import check_out_file
from rag_r1.retriever.records import (
    CorrectnessRecord,
    RelevanceRecord,
    RoundsRecord,
    read_records,
    write_records,
)
from rag_r1.retriever.selection.rules import USEFUL, RowSelection, RuleMode, SelectionRule, Use
from rag_r1.retriever.selection.scores import ScoreFiles
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks

_DESCRIPTION = """\
Select training rows from recorded scores: those of `rag-r1 retriever data`, or of the published pipeline,
whose records have the same keys.

example:
  rag-r1 retriever select --candidates data/round1/candidates.jsonl --relevance data/round1/relevance.jsonl \\
      --correctness data/round1/correctness.jsonl --selection faithful --out data/round1/faithful.jsonl
"""

#: The records of each file, and the argument that names it.
_SCORES = {RoundsRecord: "candidates", RelevanceRecord: "relevance", CorrectnessRecord: "correctness"}
Points = Annotated[int, Field(ge=0, le=100), Constraint("a whole number from 0 to 100")]


class SelectionArguments(Arguments):
    """The rule by which rows are selected (rules.py)."""

    utility: Use = argument(
        "score by which a passage is a positive: correctness of the final answer (GAC) and relevance to the "
        "query (LR), or one of them alone",
        default="both",
    )
    selection: RuleMode = argument(
        "safe: no passage that is itself useful becomes a negative; faithful: the published rule",
        default="safe",
    )
    least_relevance: Points = argument("LR that a positive needs", "N", default=USEFUL)
    tolerance: Points = argument("points of LR below the best at which safe sees a tie", "N", default=5)
    negatives: Positive = argument("negatives of a row", "N", default=15)

    def rule(self, seed: int) -> SelectionRule:
        """The rule."""
        limits = self.model_dump(include={"least_relevance", "tolerance", "negatives"})
        return SelectionRule(mode=self.selection, use=self.utility, seed=seed, **limits)


class SelectArguments(SelectionArguments):
    """The files with the scores, and the file for the rows."""

    candidates: Path | None = argument(
        "file candidates.jsonl; needed without --correctness", "FILE", default=None
    )
    relevance: Path | None = argument("file relevance.jsonl", "FILE", default=None)
    correctness: Path | None = argument("file correctness.jsonl", "FILE", default=None)
    out: Path = argument("file for the rows, FILE.jsonl", "FILE")
    dataset: str | None = argument("data set of records that name none", "NAME", default=None)
    seed: int = argument("seed of the draw of negatives", default=0)
    check_only: bool = argument(CHECK_ONLY, default=False)

    @model_validator(mode="after")
    def _has_scores(self) -> SelectArguments:
        faults = [
            f"--utility {self.utility} needs --{name}"
            for name in ("relevance", "correctness")
            if self.utility in ("both", name) and getattr(self, name) is None
        ]
        if self.candidates is None and self.correctness is None:
            faults.append("--candidates is needed: relevance alone does not name the queries")
        if self.out in (self.candidates, self.relevance, self.correctness):
            faults.append(f"--out {self.out} is also a file that is read: give another")
        if faults:
            raise ValueError("; ".join(faults))
        return self


@command_main(RunError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when the rows are written, else 1."""
    texts = {"prog": "rag-r1 retriever select", "description": _DESCRIPTION}
    args = read_arguments(SelectArguments, arguments, check=_check_start, **texts)
    _check_start(args)
    if args.check_only:
        print(f"all checks passed: rows would be selected into {args.out}")
        return 0
    files = ScoreFiles(args.candidates, args.relevance, args.correctness, args.dataset or "")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    selection = write_rows(files, args.rule(args.seed), args.out)
    for line in (*selection.lines(), f"training rows: {args.out}"):
        print(line)
    return 0


def _check_start(args: SelectArguments) -> None:
    """Raises StartError with all that is wrong."""
    with StartChecks() as checks:
        checks.run(check_out_file, args.out)
        for kind, path in _SCORES.items():
            if (file := getattr(args, path)) is not None:
                checks.run(_count, kind, file)


def _count(kind: type[Any], path: Path) -> int:
    return sum(1 for _ in read_records(kind, path))


def write_rows(files: ScoreFiles, rule: SelectionRule, out: Path) -> RowSelection:
    """Select from these scores and write the rows; what was selected. Raises RunError."""
    selection = RowSelection(rule)
    write_records(out, selection.of(files.rounds()))
    return selection
