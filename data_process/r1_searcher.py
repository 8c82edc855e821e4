"""R1-Searcher's training sets: stage 1 (350 questions) and stage 2 (8,148).

From the published rows:
    python -m data_process.r1_searcher --stage 1 --out data/r1s/stage1 \\
        --train stage_1.jsonl --validation dev.jsonl
    python -m data_process.r1_searcher --stage 2 --out data/r1s/stage2 \\
        --train stage_2.jsonl --validation dev.jsonl
or newly drawn from the raw training files of HotpotQA and 2WikiMultihopQA:
    python -m data_process.r1_searcher --stage 2 --out data/r1s/stage2 --hotpotqa hotpot_train_v1.1.json \\
        --2wiki train.json --difficulty rollouts.jsonl --validation dev.jsonl
--difficulty names a file with the number of rollouts that each question took (see the module
data_process.difficulty_file; trajectory records of a run can be used too). Without it the difficulty is
ignored. --count changes the published numbers: --count hotpotqa.medium=20 --count 2wiki.hard=0. For Llama
models, use --protocol r1_searcher_instruct.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that the script also runs without installation

from data_process.command import QuestionArguments, ScriptInput, read_split, run
from data_process.difficulty import CLASSES, PUBLISHED, SOURCES, Composition, select
from data_process.difficulty_file import DifficultyTable, read_difficulties
from data_process.sources import SOURCES as KINDS
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.data.files.duplicates import question_key
from rag_r1.data.files.qa_parquet import Split, make_splits
from rag_r1.data.files.question_file import QuestionFile
from rag_r1.data.files.row_files import open_rows
from rag_r1.io.errors import DataError
from rag_r1.options.command_line import argument, with_defaults
from rag_r1.runs.start_checks import StartChecks


class StageArguments(QuestionArguments):
    """The stage, and the raw files from which it can be drawn."""

    stage: Annotated[
        Literal[tuple(PUBLISHED)], BeforeValidator(lambda value: int(value) if value.isdecimal() else value)
    ] = argument("stage of R1-Searcher whose published counts are used")
    hotpotqa: str | None = argument("HotpotQA's raw training file, instead of --train", "FILE", default=None)
    two_wiki: str | None = argument("2WikiMultihopQA's raw training file", "FILE", default=None, flag="2wiki")
    difficulty: str | None = argument("rollouts that each question took, JSON lines", "FILE", default=None)
    count: list[str] = argument(
        f"number of questions in place of the published one; sources {', '.join(SOURCES)}, "
        f"classes {', '.join(CLASSES)}",
        "SOURCE.CLASS=N",
        default=[],
    )
    seed: int = argument("seed of the draw", default=0)

    inputs: ClassVar[tuple[str, ...]] = ("train", "validation", "hotpotqa", "two_wiki", "difficulty")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script and return the exit status.

    A composition that cannot be met is not an error; a note on standard error reports it.
    """
    declared = with_defaults(StageArguments, protocol="r1_searcher", source_name="r1_searcher")
    return run(declared, arguments, __doc__, _read_splits)


def _read_splits(args: StageArguments) -> ScriptInput:
    """Read the published rows, or draw a stage from the raw ones.

    Raises DataError if the arguments contradict each other or a file cannot be read.
    """
    files = {"hotpotqa": args.hotpotqa, "2wiki": args.two_wiki}
    with StartChecks() as checks:
        if any(files.values()) == bool(args.train):
            problem = "give either --train (the published rows) or --hotpotqa and --2wiki (the raw ones)"
            checks.add(DataError(problem))
        if args.train and (args.difficulty or args.count):
            checks.add(DataError("--difficulty and --count are for raw rows: leave them out with --train"))
        counts = checks.run(_requested_counts, args.count)
        skip = args.skip_bad_rows
        for name, path in files.items():
            checks.run(_refuse_other_source, name, path)
        raw = {name: read_split(path, skip, checks) for name, path in files.items() if path}
        test = read_split(args.validation, skip, checks)
        published = read_split(args.train, skip, checks)
        difficulties = checks.run(read_difficulties, args.difficulty, skip) if args.difficulty else None
    if published is not None:
        return _published_splits(make_splits(published, test), args.stage)
    assert counts is not None  # else StartChecks has raised
    composition = {entry: count for entry, count in {**PUBLISHED[args.stage], **counts}.items() if count}
    files_read = {name: file for name, file in raw.items() if file is not None}
    return _drawn_splits(args, composition, files_read, test, difficulties)


def _drawn_splits(
    args: StageArguments,
    composition: Composition,
    raw: Mapping[str, QuestionFile],
    test: QuestionFile | None,
    difficulties: DifficultyTable | None,
) -> ScriptInput:
    """Draw a composition from raw rows (`raw`: source -> file), and print a note for each unmet count.

    The split counts as read only the rows that were drawn, that repeat another row or that are malformed; the
    numbers of all rows are in `raw_rows` of the summary. Raises DataError if nothing can be drawn.
    """
    excluded = {question_key(q.question): q for q in reversed(test.questions)} if test else {}
    questions = {name: source.questions for name, source in raw.items()}
    sample = select(questions, composition, difficulties and difficulties.class_of, excluded, args.seed)
    if not sample.questions:
        raise DataError("nothing could be drawn: " + ("; ".join(sample.shortfalls) or "every --count is 0"))
    notes = [] if difficulties else ["no --difficulty: drawn from all questions, whatever their difficulty"]
    for note in notes + sample.shortfalls:
        print(f"note: {note}", file=sys.stderr)
    bad = sum((source.bad for source in raw.values()), BadRows())
    name = " + ".join(source.name for source in raw.values())
    n_read = len(sample.questions) + len(sample.repeats) + bad.count
    splits = make_splits(QuestionFile(name, sample.questions, n_read, bad), test)
    splits[0].repeats.extend(sample.repeats)
    raw_rows = {name: source.n_read for name, source in raw.items()}
    drawn = [count.summary for count in sample.counts]
    details = {"stage": args.stage, "seed": args.seed, "raw_rows": raw_rows, "drawn": drawn}
    return ScriptInput(splits, details, difficulties.bad if difficulties else BadRows())


def _published_splits(splits: list[Split], stage: int) -> ScriptInput:
    """Return the published rows, and print a note if the file has fewer than the stage was published with."""
    expected = sum(PUBLISHED[stage].values())
    if (written := len(splits[0].questions)) < expected:
        print(
            f"note: {written} of the {expected} questions that stage {stage} was published with; the counts "
            "below say what was left out, and the rest is not in the file",
            file=sys.stderr,
        )
    return ScriptInput(splits, {"stage": stage, "published": expected})


def _refuse_other_source(name: str, path: str | None) -> None:
    """Raise DataError if the columns of a raw file, or the keys of its first row, show that it is of another
    source than `name`, one of SOURCES. Other files may have any columns of questions and answers."""
    if not path:
        return
    kind = KINDS["2wikimultihopqa" if name == "2wiki" else name]
    with open_rows(Path(path), kind.columns, kind.list_columns) as (columns, rows):
        first = next(rows, (1, None))[1]
        keys = columns or (first if isinstance(first, dict) else {})
        if fault := kind.other_source(keys, KINDS):
            raise DataError(f"--{name} {path}: {fault}: give the file of {name}")


def _requested_counts(entries: Sequence[str]) -> Composition:
    """Return the numbers of --count. Raises StartError with those that are not SOURCE.CLASS=N, and those that
    are given twice."""
    counts: dict[tuple[str, str], int] = {}
    with StartChecks() as checks:
        for entry in entries:
            name, _, count = entry.partition("=")
            source, _, class_ = name.partition(".")
            if source not in SOURCES or class_ not in CLASSES or not count.isdecimal():
                names = f"where SOURCE is {' or '.join(SOURCES)}, and CLASS is {', '.join(CLASSES)}"
                example = "use SOURCE.CLASS=N, for example hotpotqa.medium=200"
                checks.add(DataError(f"--count {entry}: {example}, {names}"))
            elif (source, class_) in counts:
                checks.add(DataError(f"--count {name} is given twice: give it once"))
            else:
                counts[source, class_] = int(count)
    return counts


if __name__ == "__main__":
    sys.exit(main())
