"""`rag-r1 probe-passages`: collects the passages that the probes `random` and `gold` show.

The questions name the gold passages; collect.py finds them in the corpus and draws the random ones. A search
card with the same questions and corpus gets the same passages. The file (rag_r1/probes/passages.py) also has
the position of the scan, so the same command continues after an interruption.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import model_validator

from rag_r1.corpus.inputs import CorpusInputs, read_inputs
from rag_r1.data.evidence import GoldEvidence
from rag_r1.data.files.bad_rows import HELP, BadRows
from rag_r1.evaluation.probes.collect import FILE_START, RANDOM_SAMPLE_SIZE, SAVE_INTERVAL, find_passages
from rag_r1.io.errors import DataError
from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.options.out_folder import check_out_file
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks

COMMAND = "rag-r1 probe-passages"
_DESCRIPTION = """\
Find the passages that the probes `random` and `gold` show in the validations of a training.

example:
  rag-r1 probe-passages --questions data/mq/test.parquet --corpus wiki-18.jsonl.gz --out data/mq/passages.json
"""
_EPILOG = """\
Train with rag_r1.probe_passages=FILE and, for example, 'rag_r1.probes=[closed_book,random,gold]'. Run again,
the same command continues where it was killed.
"""


class PassagesArguments(Arguments):
    """The questions, the corpus, and the file for the passages."""

    questions: list[Path] = argument(
        "questions: data.val_files of the training, or a data set's own files", ("FILE", ...), old="data"
    )
    corpus: list[Path] = argument(
        "the corpus: .jsonl, .tsv (each plain or .gz), .parquet, a folder of these, or an index folder",
        ("PATH", ...),
    )
    out: Path = argument("file for the passages, FILE.json", "FILE")
    random: Positive = argument(
        "random passages that are drawn from the corpus", "N", default=RANDOM_SAMPLE_SIZE
    )
    seed: int = argument("seed of the random passages", default=0)
    skip_bad_rows: bool = argument(HELP, default=False)
    no_progress: bool = argument("show no progress bar", default=False)
    check_only: bool = argument(CHECK_ONLY, default=False)

    @model_validator(mode="after")
    def _out_is_json(self) -> PassagesArguments:
        if self.out.suffix != ".json":
            raise ValueError(f"--out {self.out}: the name must end in .json")
        return self


@command_main(RunError, DataError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Find the passages, print their numbers and return the exit status."""
    args = read_arguments(
        PassagesArguments,
        arguments,
        prog=COMMAND,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        check=check_start,
    )
    inputs = check_start(args)
    if args.check_only:
        print(f"all checks passed: the passages of {inputs} would be written to {args.out}")
        return 0
    lines, bad = gather(args, inputs)
    print("\n".join(lines))
    for line in bad.left_out():
        print(terminal_text(line, 1000), file=sys.stderr)
    return 0


def check_start(args: PassagesArguments) -> CorpusInputs:
    """Check the arguments, and return the questions and the corpus. Raises StartError with all problems."""
    with StartChecks() as checks:
        inputs_read = (*args.questions, *args.corpus)
        checks.run(check_out_file, args.out, inputs=inputs_read, begin=FILE_START, owner=COMMAND)
        inputs = read_inputs(checks, args.questions, args.corpus, skip_bad_rows=args.skip_bad_rows)
    assert inputs is not None  # or the checks have raised
    return inputs


def gather(
    args: PassagesArguments, inputs: CorpusInputs, *, save_interval: int = SAVE_INTERVAL
) -> tuple[list[str], BadRows]:
    """Write the passages. Returns the lines to be printed, with the numbers of passages, and the rows that
    were left out. `inputs` is the result of `check_start`.

    Raises DataError if the corpus cannot be read, or has bad rows that are not to be skipped, and OSError if
    the passages cannot be written.
    """
    data = inputs.questions
    gold = [
        GoldEvidence.of({"supporting_ids": question.ids, "supporting_titles": question.titles})
        for question in data.questions
    ]
    passages, bad = find_passages(
        inputs.corpus,
        gold,
        args.out,
        sample_size=args.random,
        seed=args.seed,
        skip_bad_rows=args.skip_bad_rows,
        save_interval=save_interval,
        progress=not args.no_progress,
    )
    named = [evidence for evidence in gold if evidence]
    complete = sum(bool(passages.gold_passages(evidence, golds=())) for evidence in named)
    lines = [
        f"questions that name their gold passages: {len(named):,} of {len(gold):,}",
        f"all of them found for: {complete:,}",
        f"random passages: {len(passages.random):,}",
        f"passages: {args.out}",
    ]
    return lines, data.bad + bad
