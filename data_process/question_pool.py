"""Collects the questions of a set in an SQLite file and decides which of them are written.

`build.py` adds the rows of all sources, in the order of the sources (validation first). Each of these methods
then marks rows that will not be written, with the reason in the column `outcome`:

    deduplicate   rows that repeat the question and the answers of an earlier row of their split
    drop_overlap  rows of train whose question is in test
    draw          rows of a source beyond the requested number, chosen by a seeded hash of the question

A file instead of lists in memory allows sets of millions of questions. Questions are compared as in
rag_r1/data/files/duplicates.py. The draw depends only on the seed, the source's name, the question and its
answers: neither other sources nor the order of the rows change it, and a smaller draw is part of a larger
one.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_process.mixture import MixEntry
from rag_r1.data.files.duplicates import Outcome, golds_key, question_key
from rag_r1.data.files.questions import Question

#: The outcome of rows that are not drawn; all other outcomes are members of `Outcome`.
NOT_DRAWN = "not drawn"
_BATCH = 2000  # rows of one transaction
#: `seq` numbers all rows from 1; `own_id` is the id in the source; `key` and `answers` are digests by which
#: rows are compared; `draw` orders the rows of a draw; `first` is the row that a repeated one repeats.
_TABLE = """
CREATE TABLE rows (
    seq INTEGER PRIMARY KEY, split TEXT, entry INTEGER, row INTEGER, own_id TEXT, question TEXT, golds TEXT,
    metadata TEXT, key BLOB, answers BLOB, draw INTEGER, outcome TEXT, first INTEGER
)
"""
_COLUMNS = "seq, split, entry, row, own_id, question, golds, metadata"


@dataclass(frozen=True)
class PooledQuestion:
    """A question in the pool."""

    #: Its number in the pool, from 1.
    seq: int
    split: str
    #: The index of its mixture entry, from 0.
    entry: int
    question: Question


class QuestionPool:
    """The database, as a context manager that deletes the file at the end of the block.

    Methods name an entry of the mixture by its index in `entries`.
    """

    def __init__(self, path: Path, entries: list[MixEntry], seed: int):
        self.path, self.entries, self.seed = path, entries, seed

    def __enter__(self) -> QuestionPool:
        self.path.unlink(missing_ok=True)
        self._database = sqlite3.connect(self.path, isolation_level=None)
        # Nothing has to survive a crash; 32 MB of the file are kept in memory.
        for setting in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-32000", "temp_store=FILE"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute(_TABLE)
        return self

    def __exit__(self, *error: Any) -> None:
        self._database.close()
        self.path.unlink(missing_ok=True)

    def add(self, entry: int, questions: Iterable[Question]) -> None:
        """Add the questions of an entry."""
        split, name = self.entries[entry].split, self.entries[entry].name
        batch: list[tuple] = []
        for question in questions:
            batch.append((split, entry, *self._columns(name, question)))
            if len(batch) == _BATCH:
                self._insert(batch)
                batch = []
        self._insert(batch)

    def _columns(self, name: str, question: Question) -> tuple:
        """Return the values of a row, from the column `row` to `draw`; `name` is the name of its entry."""
        text = question_key(question.question)
        key = _digest(text)
        answers = _digest("\n".join(sorted(golds_key(question))))
        digest = hashlib.blake2b(f"{self.seed}\n{name}\n".encode() + key + answers, digest_size=8).digest()
        return (
            question.row,
            question.id,
            question.question,
            json.dumps(question.golds, ensure_ascii=False),
            json.dumps(dict(question.metadata), ensure_ascii=False),
            key,
            answers,
            int.from_bytes(digest, "big", signed=True),
        )

    def _insert(self, batch: list[tuple]) -> None:
        """Add rows, each as (split, entry, and the values of `_columns`), in one transaction."""
        self._database.execute("BEGIN")
        self._database.executemany(
            "INSERT INTO rows (split, entry, row, own_id, question, golds, metadata, key, answers, draw) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            batch,
        )
        self._database.execute("COMMIT")

    def deduplicate(self) -> None:
        """Mark the rows that repeat the question and the answers of an earlier row of their split."""
        self._database.execute("CREATE INDEX by_key ON rows (split, key, answers)")
        self._database.execute(
            "CREATE TEMP TABLE several AS SELECT split, key, answers, MIN(seq) AS first FROM rows "
            "GROUP BY split, key, answers HAVING COUNT(*) > 1"
        )
        self._database.execute(
            "UPDATE rows SET outcome = ?, first = several.first FROM several "
            "WHERE rows.split = several.split AND rows.key = several.key AND rows.answers = several.answers "
            "AND rows.seq > several.first",
            (Outcome.DUPLICATE,),
        )

    def drop_overlap(self) -> None:
        """Mark the rows of train whose question is also in a written row of test."""
        self._database.execute(
            f"UPDATE rows SET outcome = ?, first = tested.first FROM {_TESTED} AND {_WRITTEN}",
            (Outcome.IN_TEST,),
        )

    def draw(self, entry: int) -> None:
        """Draw the questions of the requested number of an entry's rows, and mark the others. Without a
        number, all are drawn."""
        mix_entry = self.entries[entry]
        if mix_entry.take is not None:
            self._database.execute(
                f"UPDATE rows SET outcome = ? WHERE entry = {entry} AND outcome IS NULL AND seq NOT IN "
                f"(SELECT seq FROM rows WHERE entry = {entry} AND outcome IS NULL ORDER BY draw, seq "
                f"LIMIT {min(mix_entry.take * mix_entry.join, 2**62)})",  # SQLite takes no more than 64 bits
                (NOT_DRAWN,),
            )

    def counts(self, entry: int) -> dict[str | None, int]:
        """Return the number of an entry's rows by outcome; the outcome of written rows is None."""
        counts = f"SELECT outcome, COUNT(*) FROM rows WHERE entry = {entry} GROUP BY outcome"
        return dict(self._database.execute(counts).fetchall())

    def overlap(self) -> int:
        """Return the number of written rows of train whose question is also in a written row of test."""
        return self._database.execute(f"SELECT COUNT(*) FROM rows, {_TESTED} AND {_WRITTEN}").fetchone()[0]

    def questions(self, entry: int | None = None, in_draw_order: bool = False) -> Iterator[PooledQuestion]:
        """Yield the written rows of all entries, or of one, in the order of their sources or of the draw."""
        condition = "outcome IS NULL" + (f" AND entry = {entry}" if entry is not None else "")
        order = "draw, seq" if in_draw_order else "seq"
        rows = self._database.execute(f"SELECT {_COLUMNS} FROM rows WHERE {condition} ORDER BY {order}")
        yield from map(_to_row, rows)

    def at(self, seq: int) -> PooledQuestion:
        """Return the row with the number `seq`."""
        rows = self._database.execute(f"SELECT {_COLUMNS} FROM rows WHERE seq = ?", (seq,))
        return _to_row(rows.fetchone())

    def repeated_ids(self, entry: int) -> set[str]:
        """Return the source ids that several written rows with the entry's name and split share."""
        return {own_id for (own_id,) in self._database.execute(self._repeated_ids_query(entry))}

    def repeated_id_rows(self, entry: int) -> list[int]:
        """Return the row numbers, in the source's file, of the entry's written rows whose id is repeated."""
        rows = self._database.execute(
            f"SELECT row FROM rows WHERE entry = {entry} AND outcome IS NULL "
            f"AND own_id IN ({self._repeated_ids_query(entry)}) ORDER BY seq"
        )
        return [row for (row,) in rows]

    def _repeated_ids_query(self, entry: int) -> str:
        """Return the SQL query for `repeated_ids`."""
        this = self.entries[entry]
        entries = [i for i, e in enumerate(self.entries) if (e.name, e.split) == (this.name, this.split)]
        return (
            f"SELECT own_id FROM rows WHERE entry IN ({', '.join(map(str, entries))}) AND outcome IS NULL "
            "AND own_id IS NOT NULL GROUP BY own_id HAVING COUNT(*) > 1"
        )

    def is_repeated(self, split: str, question: str) -> bool:
        """Return whether several written rows of the split have this question (with different answers)."""
        rows = self._database.execute(
            "SELECT COUNT(*) FROM rows WHERE split = ? AND key = ? AND outcome IS NULL",
            (split, _digest(question_key(question))),
        )
        return rows.fetchone()[0] > 1

    def repeats(self) -> Iterator[tuple[PooledQuestion, PooledQuestion, str]]:
        """Yield each row whose question is also in an earlier row or in test, with that row and an outcome.

        Written rows are included: the outcome is `OTHER_ANSWERS` if an earlier row has the same question with
        different answers, and `OVERLAP_KEPT` if the question is also in test.
        """
        marked = "SELECT seq, first, outcome FROM rows WHERE first IS NOT NULL"
        other_answers = (
            f"SELECT rows.seq, same.first, '{Outcome.OTHER_ANSWERS}' FROM rows "
            "JOIN (SELECT split, key, MIN(seq) AS first FROM rows "
            "WHERE outcome IS NULL GROUP BY split, key HAVING COUNT(*) > 1) AS same "
            "ON rows.split = same.split AND rows.key = same.key AND rows.seq > same.first "
            f"AND {_WRITTEN}"
        )
        leaks = f"SELECT rows.seq, tested.first, '{Outcome.OVERLAP_KEPT}' FROM rows, {_TESTED} AND {_WRITTEN}"
        for seq, first, outcome in self._database.execute(
            f"{marked} UNION ALL {other_answers} UNION ALL {leaks} ORDER BY 1"
        ):
            yield self.at(seq), self.at(first), outcome


#: SQL that joins the questions of written rows of test with the rows of train that repeat them.
_TESTED = (
    "(SELECT key, MIN(seq) AS first FROM rows WHERE split = 'test' AND outcome IS NULL GROUP BY key) "
    "AS tested WHERE rows.split = 'train' AND rows.key = tested.key"
)
_WRITTEN = "rows.outcome IS NULL"


def _to_row(columns: tuple) -> PooledQuestion:
    """Return the question in a row of the database with the columns _COLUMNS."""
    seq, split, entry, row, own_id, question, golds, metadata = columns
    content = Question(question, tuple(json.loads(golds)), own_id, row, json.loads(metadata))
    return PooledQuestion(seq, split, entry, content)


def _digest(text: str) -> bytes:
    """Return a hash of a text, of 16 bytes."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
