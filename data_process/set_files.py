"""Writes the parquet files of a set, and makes its reports and its counts from the question pool.

`build.py` calls these functions when the question pool is complete. The two reports list repeated and similar
questions. They consist of JSON lines; each names a row and the row that it repeats or resembles, with their
split, source, file, number, question and answers. Functions with a parameter `index` are about the entry of
the mixture at that index of `pool.entries`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_process.question_pool import NOT_DRAWN, PooledQuestion, QuestionPool
from data_process.sources.multi_question import join_questions
from rag_r1.data.files.bad_rows import NAMED, BadRows
from rag_r1.data.files.duplicates import Outcome, row_label
from rag_r1.data.files.near_duplicates import near_duplicates
from rag_r1.data.files.qa_parquet import make_row, short_id
from rag_r1.data.files.questions import Question
from rag_r1.data.rows import QuestionRow, RowWriter
from rag_r1.io.atomic_files import atomic_file
from rag_r1.protocols import Protocol


def repeated_lines(pool: QuestionPool) -> Iterator[dict[str, Any]]:
    """Yield the lines of repeated_questions.jsonl."""
    for row, first, outcome in pool.repeats():
        fields, first_fields = _row_fields(pool, row), _row_fields(pool, first)
        yield {"split": row.split, "outcome": outcome, "row": fields, "first": first_fields}


def similar_lines(pool: QuestionPool, similarity: float, counts: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of near_duplicates.jsonl: the written rows that resemble an earlier one.

    The order is that of the pool, which has the validation set first. `similarity` is the lowest one that is
    reported; 0 turns the search off. The numbers of `pairs`, and of pairs `across_splits`, are added to
    `counts`.
    """
    if not similarity:
        return
    seqs = array("q")

    def texts() -> Iterator[str]:
        for pooled in tqdm(pool.questions(), desc="near duplicates", unit=" questions", mininterval=1):
            seqs.append(pooled.seq)
            yield pooled.question.question

    for pair in near_duplicates(texts(), lambda i: pool.at(seqs[i]).question.question, similarity):
        row, first = pool.at(seqs[pair.later]), pool.at(seqs[pair.first])
        across_splits = row.split != first.split
        counts.update({"pairs": 1, "across_splits": int(across_splits)})
        yield {
            "similarity": round(pair.similarity, 3),
            "across_splits": across_splits,
            "row": _row_fields(pool, row),
            "first": _row_fields(pool, first),
        }


def _row_fields(pool: QuestionPool, pooled: PooledQuestion) -> dict[str, Any]:
    """Return the fields by which a report identifies a row."""
    entry = pool.entries[pooled.entry]
    return {"split": pooled.split, "source": entry.name, "file": entry.location, **row_label(pooled.question)}


def write_splits(pool: QuestionPool, splits: Iterable[str], protocol: Protocol, folder: Path) -> list[int]:
    """Write `<split>.parquet` for each split, and return the number of rows written for each entry.

    The files are replaced one right after the other when all of them are complete. After an error or a kill
    before that, those of an earlier run remain.
    """
    written = [0] * len(pool.entries)
    with ExitStack() as files:
        for split in splits:
            part = files.enter_context(atomic_file(folder / f"{split}.parquet"))
            with RowWriter(part) as writer:  # complete before a file of another split is replaced
                for index, entry in enumerate(pool.entries):
                    if entry.split == split:
                        rows = _entry_rows(pool, index, protocol, writer.count)
                        for row in tqdm(rows, desc=f"writing {entry.name}", unit=" rows", mininterval=1):
                            writer.add(row)
                            written[index] += 1
    return written


def _entry_rows(pool: QuestionPool, index: int, protocol: Protocol, start: int) -> Iterator[QuestionRow]:
    """Yield the rows of an entry; the first one gets the index `start` in the file."""
    entry = pool.entries[index]
    repeated_ids = pool.repeated_ids(index)
    for row_index, question in enumerate(_entry_questions(pool, index, repeated_ids), start):
        hashed = question.id is None or question.id in repeated_ids
        yield make_row(
            replace(question, metadata={**question.metadata, "source_row": question.row}),
            protocol,
            entry.name,
            entry.split,
            row_index,
            repeated_id=hashed,
            repeated_question=hashed and pool.is_repeated(entry.split, question.question),
        )


def _entry_questions(pool: QuestionPool, index: int, repeated_ids: set[str]) -> Iterator[Question]:
    """Yield the questions of an entry's rows, joined if the entry asks for several in a row.

    Questions are joined in the order of the draw, since neighbours in a file may resemble each other. The
    last ones are left over if they are too few for a row.
    """
    size = pool.entries[index].join
    questions = (pooled.question for pooled in pool.questions(entry=index, in_draw_order=size > 1))
    if size == 1:
        yield from questions
        return
    while len(group := list(islice(questions, size))) == size:
        ids = [short_id(part, repeated_id=part.id in repeated_ids, repeated_question=True) for part in group]
        yield replace(join_questions(group, "+".join(ids)), row=group[0].row)


def entry_counts(pool: QuestionPool, index: int, n_read: int, bad: BadRows, written: int) -> dict[str, Any]:
    """Return the counts of an entry for the summary.

    They add up: read = malformed + duplicates + overlap_with_test + not_drawn + left_over + written x
    questions_per_row. Rows that share an id are written too, each with an id made of its question.
    """
    entry = pool.entries[index]
    outcomes = pool.counts(index)
    same_id = pool.repeated_id_rows(index)
    return {
        "split": entry.split,
        "name": entry.name,
        "source": entry.kind.name,
        "from": entry.location,
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
