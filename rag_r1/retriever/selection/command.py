"""`rag-r1 retriever select`: selects training rows from recorded scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import read_arguments
from rag_r1.options.out_folder import check_out_file
from rag_r1.retriever.records import (
    CorrectnessRecord,
    RelevanceRecord,
    RoundsRecord,
    TrainingRow,
    check_records,
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
    """Run the command. Returns 0 when the rows are written, or all checks have passed with --check-only, and
    1 after an error, which is printed, or if no row was selected; then --out is left as it was."""
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
    write_records(args.out, _selected_rows(selection, files))
    for line in (*selection.lines(), f"training rows: {args.out}"):
        print(line)
    return 0


def _check_start(args: SelectArguments) -> None:
    """Read all files of scores to validate them. Raises StartError with all problems of the files and of
    --out."""
    with StartChecks() as checks:
        kinds = (RoundsRecord, RelevanceRecord, CorrectnessRecord)
        paths = (args.candidates, args.relevance, args.correctness)
        checks.run(check_out_file, args.out)
        for kind, path in zip(kinds, paths, strict=True):
            if path is not None:
                checks.run(check_records, kind, path)


def _selected_rows(selection: RowSelection, files: ScoreFiles) -> Iterator[TrainingRow]:
    """Yield the selected rows. Raises RunError, with the reasons, if there are none."""
    yield from selection.select(files.rounds())
    if not selection.rows:
        reasons = "; ".join(line.strip() for line in selection.lines()[1:]) or "the files have no rounds"
        remedy = "give scores of more questions, or another rule (--utility, --least-relevance, --negatives)"
        raise RunError(f"no training row was selected ({reasons}): {remedy}")
