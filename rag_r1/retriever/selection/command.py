"""`rag-r1 retriever select`: selects training rows from recorded scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import read_arguments
from rag_r1.options.out_folder import check_out_file
from rag_r1.retriever.records import (
    CorrectnessRecord,
    Record,
    RelevanceRecord,
    RoundsRecord,
    read_records,
    write_records,
)
from rag_r1.retriever.selection.arguments import SelectArguments
from rag_r1.retriever.selection.rules import RowSelection
from rag_r1.retriever.selection.scores import ScoreFiles
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartChecks

_DESCRIPTION = """\
Select training rows from recorded scores: those of `rag-r1 retriever data`, or of the published pipeline,
whose records have the same keys.

example:
  rag-r1 retriever select --candidates data/round1/candidates.jsonl --relevance data/round1/relevance.jsonl \\
      --correctness data/round1/correctness.jsonl --selection faithful --out data/round1/faithful.jsonl
"""


@command_main(RunError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 when the rows are written, and 1 after an error, which is printed."""
    args = read_arguments(
        SelectArguments,
        arguments,
        prog="rag-r1 retriever select",
        description=_DESCRIPTION,
        check=_check_start,
    )
    _check_start(args)
    if args.check_only:
        print(f"all checks passed: rows would be selected into {args.out}")
        return 0
    files = ScoreFiles(args.candidates, args.relevance, args.correctness, args.dataset or "")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    selection = RowSelection(args.rule(args.seed))
    write_records(args.out, selection.select(files.rounds()))
    for line in (*selection.lines(), f"training rows: {args.out}"):
        print(line)
    return 0


def _check_start(args: SelectArguments) -> None:
    """Read all files of scores to validate them. Raises StartError with all problems of the files and of
    --out."""
    with StartChecks() as checks:
        checks.run(check_out_file, args.out)
        checks.run(_count_records, RoundsRecord, args.candidates)
        checks.run(_count_records, RelevanceRecord, args.relevance)
        checks.run(_count_records, CorrectnessRecord, args.correctness)


def _count_records(kind: type[Record], path: Path | None) -> int:
    """Return the number of records of a file, or 0 without a file. Raises RunError for the first line that is
    not such a record."""
    return 0 if path is None else sum(1 for _ in read_records(kind, path))
