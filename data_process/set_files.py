"""Writes the files of a set: parquet, counts, and reports of repeated and similar questions.

A report is JSON lines; a line has a row and the one that it repeats or resembles, each with its split,
source, file and number, its question and its answers. Without a line there is no file, not even one of an
earlier run.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_process.question_pool import NOT_DRAWN, PooledQuestion, QuestionPool
from data_process.sources.multi_question import join
from rag_r1.data.files.bad_rows import NAMED, BadRows
from rag_r1.data.files.duplicates import Outcome, row_label
from rag_r1.data.files.near_duplicates import near_duplicates
from rag_r1.data.files.qa_parquet import hashed_id, make_row
from rag_r1.data.files.questions import Question
from rag_r1.data.rows import QuestionRow, RowWriter
from rag_r1.io.atomic_files import write_json_lines
from rag_r1.protocols import Protocol


def write_report(path: Path, lines: Iterable[dict[str, Any]]) -> int:
    """Write JSON lines; returns how many."""
    count = write_json_lines(path, lines)
    if not count:
        path.unlink()
    return count


def repeated_lines(pool: QuestionPool) -> Iterator[dict[str, Any]]:
    """The lines of repeated_questions.jsonl."""
    for row, first, outcome in pool.repeats():
        rows = {"row": _row_fields(pool, row), "first": _row_fields(pool, first)}
        yield {"split": row.split, "outcome": outcome, **rows}


def similar_lines(pool: QuestionPool, similarity: float) -> Iterator[dict[str, Any]]:
    """The lines of near_duplicates.jsonl: rows that are written and resemble an earlier one; those of the
    validation set come first. None if the similarity is 0."""
    if not similarity:
        return
    seqs = array("q")

    def texts() -> Iterator[str]:
        for pooled in tqdm(pool.questions(), desc="near duplicates", unit=" questions", mininterval=1):
            seqs.append(pooled.seq)
            yield pooled.question.question

    for pair in near_duplicates(texts(), lambda i: pool.at(seqs[i]).question.question, similarity):
        row, first = pool.at(seqs[pair.later]), pool.at(seqs[pair.first])
        yield {
            "similarity": round(pair.similarity, 3),
            "across_splits": row.split != first.split,
            "row": _row_fields(pool, row),
            "first": _row_fields(pool, first),
        }


def _row_fields(pool: QuestionPool, pooled: PooledQuestion) -> dict[str, Any]:
    entry = pool.entries[pooled.entry]
    return {"split": pooled.split, "source": entry.name, "file": entry.place, **row_label(pooled.question)}


def write_splits(pool: QuestionPool, splits: Iterable[str], protocol: Protocol, folder: Path) -> list[int]:
    """Write `<split>.parquet`; returns the rows written of each entry. All files appear at the end, together;
    an error, or a kill before it, leaves those of an earlier run."""
    written = [0] * len(pool.entries)
    with ExitStack() as files:
        for split in splits:
            writer = files.enter_context(RowWriter(folder / f"{split}.parquet"))
            for number, entry in enumerate(pool.entries):
                if entry.split == split:
                    rows = _rows(pool, number, protocol, writer.count)
                    for row in tqdm(rows, desc=f"writing {entry.name}", unit=" rows", mininterval=1):
                        writer.add(row)
                        written[number] += 1
    return written


def _rows(pool: QuestionPool, number: int, protocol: Protocol, first: int) -> Iterator[QuestionRow]:
    """The rows of an entry; `first`: the index of the first in its file."""
    entry, repeated = pool.entries[number], pool.repeated_ids(number)
    for index, question in enumerate(_questions(pool, number, repeated), first):
        hashed = question.id is None or question.id in repeated
        yield make_row(
            replace(question, metadata={**question.metadata, "source_row": question.row}),
            protocol,
            entry.name,
            entry.split,
            index,
            repeated_id=hashed,
            repeated_question=hashed and pool.is_repeated(entry.split, question.question),
        )


def _questions(pool: QuestionPool, number: int, repeated: set[str]) -> Iterator[Question]:
    """The questions of an entry. If several are joined in a row, these are chosen by chance, since neighbours
    in a file may resemble each other; what is left over is too little for a row."""
    size = pool.entries[number].join
    questions = (pooled.question for pooled in pool.questions(entry=number, in_draw_order=size > 1))
    if size == 1:
        yield from questions
        return
    while len(group := list(islice(questions, size))) == size:
        ids = [hashed_id(q, True) if q.id is None or q.id in repeated else q.id for q in group]
        yield replace(join(group, "+".join(ids)), row=group[0].row)


def entry_counts(pool: QuestionPool, number: int, n_read: int, bad: BadRows, written: int) -> dict[str, Any]:
    """Numbers of an entry, which add up: read = malformed + duplicates + overlap_with_test + not_drawn +
    left_over + written x questions_per_row. Rows whose id another one has too are written, with an id that is
    made of the question."""
    entry, outcomes, same_id = pool.entries[number], pool.counts(number), pool.repeated_id_rows(number)
    return {
        "split": entry.split,
        "name": entry.name,
        "source": entry.kind.name,
        "from": entry.place,
        "asked": entry.take,
        "questions_per_row": entry.join,
        "read": n_read,
        "malformed": bad.count,
        "duplicates": outcomes.get(Outcome.DUPLICATE, 0),
        "overlap_with_test": outcomes.get(Outcome.IN_TEST, 0),
        "not_drawn": outcomes.get(NOT_DRAWN, 0),
        "left_over": outcomes.get(None, 0) - written * entry.join,
        "written": written,
        "rows_with_repeated_id": len(same_id),
        "rows_of_repeated_ids": same_id[:NAMED],
        "first_malformed": bad.first,
    }
