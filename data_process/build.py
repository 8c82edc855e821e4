"""Builds a training and a validation set from several sources, with a chosen number of questions of each.

    rag-r1 data --out data/mix --train hotpotqa=hotpot_train_v1.1.json@5000 --train nq=nq_train.jsonl@5000 \\
        --validation hotpotqa=hotpot_dev_distractor_v1.json@500 --validation bamboogle

A source is given as SOURCE[:NAME][=FILE][@N]. Without a FILE the source's data set on the Hub is read. @N
draws N questions with --seed, and NAME is the data_source under which veRL reports the rows. A YAML file
(--mix) can hold the same entries:

    train: [{source: hotpotqa, file: hotpot_train_v1.1.json, take: 5000}]
    validation: [{source: bamboogle}]
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from data_process.command import SetArguments, read_protocol
from data_process.mixture import MixEntry, read_entries
from data_process.question_pool import QuestionPool
from data_process.set_files import entry_counts, repeated_lines, similar_lines, write_splits
from data_process.source_rows import check_rows, has_first_rows, read_source
from data_process.sources import SOURCES
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.data.files.near_duplicates import require_library
from rag_r1.data.files.qa_parquet import REPEATED, SET_FILES, refuse_leftovers, write_report
from rag_r1.data.files.questions import Question
from rag_r1.io.atomic_files import write_json
from rag_r1.io.errors import DataError
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Share, argument, read_arguments
from rag_r1.options.out_folder import check_out, refuse_replaced
from rag_r1.options.settings_file import recorded_settings
from rag_r1.protocols import Protocol
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks

NEAR_DUPLICATES = "near_duplicates.jsonl"

EPILOG = (
    "sources:\n"
    + "\n".join(f"  {kind.name:16} {kind.description}" for kind in SOURCES.values())
    + """

The output is train.parquet and test.parquet (each if it has a source), data_summary.json with the counts,
repeated_questions.jsonl with every row whose question another one has, and near_duplicates.jsonl with rows
that resemble another one. Of rows with the same question and the same answers the first is kept.
"""
)

#: The file in --out that has the questions while the set is built.
_POOL = ".questions.sqlite"


class BuildArguments(SetArguments):
    """The sources, the numbers of questions, and the policy for questions that are in both splits."""

    train: list[str] = argument("a source to train on; may be repeated", "SOURCE", default=[])
    validation: list[str] = argument("a source to validate on; may be repeated", "SOURCE", default=[])
    mix: Path | None = argument("YAML file with further sources", "FILE", default=None)
    seed: int = argument("seed of the draws", default=0)
    overlap: Literal["fail", "drop", "keep"] = argument(
        "questions of train that are also in the validation set: fail, drop them from train, or keep them",
        default="fail",
    )
    near_duplicates: Share = argument(
        "least similarity of the pairs that are reported; 0: no search", "SIMILARITY", default=0.8
    )
    check_only: bool = argument(CHECK_ONLY, default=False)


@command_main(RunError, DataError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    args = read_arguments(
        BuildArguments, arguments, prog="rag-r1 data", description=__doc__, epilog=EPILOG, check=check_start
    )
    protocol, entries = check_start(args)
    if args.check_only:
        on_hub = sum(entry.file is None for entry in entries)
        note = f"; the Hub was not asked for {on_hub} of them" if on_hub else ""
        print(f"all checks passed: {len(entries)} sources would be written into {args.out}{note}")
        return 0
    try:
        with recorded_settings("rag-r1 data", args, replaces=True):
            summary = build(args, protocol, entries)
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args.out / _POOL)) from error
        raise DataError(f"{args.out / _POOL}: {error}: check its disk, or choose another --out") from error
    _print_summary(args.out, summary)
    for line in _shortages(entries, summary):
        print(f"warning: {line}", file=sys.stderr)
    return 0


def check_start(args: BuildArguments) -> tuple[Protocol, list[MixEntry]]:
    """Check everything before the set is built, including the first rows of all files, and with --check-only
    or beside another problem all rows. Returns the protocol and the entries of the mixture. Raises StartError
    with all problems."""
    with StartChecks() as checks:
        if args.near_duplicates:
            checks.run(require_library)
        protocol = checks.run(read_protocol, args.protocol, args.prompt)
        flags = {"train": args.train, "test": args.validation}
        entries = read_entries(flags, args.mix, checks)
        readable = [entry for entry in entries if entry.file and checks.run(has_first_rows, entry)]
        if args.overlap == "fail":
            checks.run(_refuse_shared_rows, entries)
        checks.run(check_out, args.out, "rag-r1 data")
        checks.run(refuse_replaced, [entry.file for entry in entries], args.out, SET_FILES)
        splits = {entry.split for entry in entries} | {split for split, values in flags.items() if values}
        if args.mix is None or not checks.problems:  # else the splits are not known
            checks.run(refuse_leftovers, splits, args.out)
        if args.check_only or args.is_partial or checks.problems:
            for entry in readable:
                checks.run(check_rows, entry, args.skip_bad_rows)
    assert protocol is not None  # else StartChecks has raised
    return protocol, entries


def _refuse_shared_rows(entries: Sequence[MixEntry]) -> None:
    """Raise DataError for a source of both splits if the same questions must be in both: all rows of one are
    taken, or both draw by the same name. (Other overlaps show when the set is built.)"""
    for one, other in combinations(entries, 2):
        is_same_file = os.path.realpath(one.location) == os.path.realpath(other.location)
        is_shared = None in (one.take, other.take) or one.name == other.name
        if one.split != other.split and one.kind == other.kind and is_same_file and is_shared:
            raise DataError(
                f"{one.label} and {other.label} are the same questions: give each split its own, or choose "
                "with --overlap drop or keep"
            )


def build(args: BuildArguments, protocol: Protocol, entries: list[MixEntry]) -> dict[str, Any]:
    """Build the set, write its files and return the summary; `check_start` returns `protocol` and `entries`.

    The rows of all sources are collected in a QuestionPool, which marks those that are not written; the
    reports and the parquet files are made from it. Raises DataError, before any parquet file is written, for
    bad rows, for a source without a remaining row, and for splits that overlap, unless the arguments allow
    it; StartError if a source cannot be read; sqlite3.Error if the pool's file cannot be written; and OSError
    if another file cannot.
    """
    splits = list(dict.fromkeys(entry.split for entry in entries))
    args.out.mkdir(parents=True, exist_ok=True)
    with QuestionPool(args.out / _POOL, entries, args.seed) as pool:
        n_read, bad = _fill_pool(pool, entries, args.skip_bad_rows)
        _mark_unwritten(pool, args)
        write_report(args.out / REPEATED, repeated_lines(pool))
        leaks = _check_splits(pool, args)
        similar = Counter[str]()
        write_report(args.out / NEAR_DUPLICATES, similar_lines(pool, args.near_duplicates, similar))
        written = write_splits(pool, splits, protocol, args.out)
        summary = {
            "protocol": protocol.name,
            "seed": args.seed,
            "overlap": {"policy": args.overlap, "kept": leaks},
            "near_duplicates": {
                "similarity": args.near_duplicates or None,
                "pairs": similar["pairs"],
                "across_splits": similar["across_splits"],
            },
            "sources": [entry_counts(pool, i, n_read[i], bad[i], written[i]) for i in range(len(entries))],
            "left_out": sum(bad, BadRows()).left_out(),
        }
    write_json(args.out / "data_summary.json", summary, ensure_ascii=False)
    return summary


def _fill_pool(
    pool: QuestionPool, entries: list[MixEntry], skip_bad_rows: bool
) -> tuple[list[int], list[BadRows]]:
    """Add the questions of all sources to the pool.

    Returns the number of rows read from each source, and its bad rows. Raises DataError for bad rows, unless
    they are skipped, and StartError if a source cannot be read.
    """
    n_read = [0] * len(entries)
    bad = [BadRows() for _ in entries]

    def questions(index: int) -> Iterator[Question]:
        location = entries[index].location
        for row, question in tqdm(read_source(entries[index]), desc=location, unit=" rows", mininterval=1):
            n_read[index] += 1
            if isinstance(question, ValueError):
                bad[index].add(f"{location}, row {row}", question)
            else:
                yield question

    with StartChecks() as checks:  # so that a source that cannot be read does not hide another
        for index in range(len(entries)):
            checks.run(pool.add, index, questions(index))
        if (total := sum(bad, BadRows())).count and not skip_bad_rows:
            raise DataError(f"nothing was written, because of {total.refusal()}")
    return n_read, bad


def _mark_unwritten(pool: QuestionPool, args: BuildArguments) -> None:
    """Mark the rows of the pool that are not written.

    The validation set comes first, since its drawn questions decide which rows of train overlap with it.
    """
    pool.deduplicate()
    for split in ("test", "train"):
        if split == "train" and args.overlap == "drop":
            pool.drop_overlap()
        for index, entry in enumerate(pool.entries):
            if entry.split == split:
                pool.draw(index)


def _check_splits(pool: QuestionPool, args: BuildArguments) -> int:
    """Return the number of questions of train that are also in the validation set.

    Raises DataError if there are any and `--overlap` is `fail`, or if a source has too few rows left.
    """
    report = args.out / REPEATED
    if (leaks := pool.overlap()) and args.overlap == "fail":
        raise DataError(
            f"{leaks} questions of train are also in the validation set ({report} names them); no parquet "
            "file was written. Remove them from train with --overlap drop, or keep them with --overlap keep"
        )
    for index, entry in enumerate(pool.entries):
        if 0 < (left := pool.counts(index).get(None, 0)) < entry.join:
            raise DataError(
                f"{entry.label}: join is {entry.join}, but only {left} questions are left for a row; no "
                "parquet file was written: lower it, or give more questions"
            )
        if not left:
            raise DataError(
                f"nothing is left of {entry.location} for {entry.split}.parquet; no parquet file was written "
                f"({report} names the rows that repeat others): leave that source out, or give another file"
            )
    return leaks


def _print_summary(out: Path, summary: dict[str, Any]) -> None:
    """Print the counts on standard output, and notes on standard error."""
    for split in dict.fromkeys(source["split"] for source in summary["sources"]):
        sources = [source for source in summary["sources"] if source["split"] == split]
        print(f"{out / split}.parquet: {sum(source['written'] for source in sources)} rows")
        for source in sources:
            _print_source(source)
    if (out / REPEATED).exists():
        print(f"{out / REPEATED}: the repeated questions, row by row")
    if (near_pairs := summary["near_duplicates"])["pairs"]:
        print(
            f"{out / NEAR_DUPLICATES}: {near_pairs['pairs']} questions that resemble another one, "
            f"{near_pairs['across_splits']} of them one of the validation set"
        )
    if overlapping := summary["overlap"]["kept"]:
        print(f"note: {overlapping} questions of train are also in the validation set", file=sys.stderr)
    for line in summary["left_out"]:
        print(line, file=sys.stderr)


def _print_source(source: dict[str, Any]) -> None:
    """Print the counts of a source, and a note on repeated ids."""
    print(
        f"  {source['name']}: {source['written']} of {source['read']} rows ({source['duplicates']} "
        f"duplicates removed, {source['overlap_with_test']} removed that are in test, "
        f"{source['not_drawn']} not drawn, {source['malformed']} malformed rows left out)"
    )
    if note := _repeated_ids_note(source):
        print(note, file=sys.stderr)


def _shortages(entries: Sequence[MixEntry], summary: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each entry of the mixture that has fewer rows than it asks for."""
    for entry, source in zip(entries, summary["sources"], strict=True):
        if entry.take is not None and source["written"] < entry.take:
            counts = f"{source['written']} rows, although {entry.take} were asked for"
            yield f"{entry.label}: {counts}: ask for no more, or give more questions"


def _repeated_ids_note(source: dict[str, Any]) -> str | None:
    """Return the note on rows of a source that share an id with another row, or None without such rows."""
    count, first = source["rows_with_repeated_id"], source["rows_of_repeated_ids"]
    if not count:
        return None
    rows = ", ".join([*map(str, first), *(["..."] if count > len(first) else [])])
    return (
        f"note: {source['name']}: rows with the id of another row: {count} ({source['from']}, row {rows}); "
        "they got ids made of their questions. To keep the ids, make them different"
    )


if __name__ == "__main__":
    sys.exit(main())
