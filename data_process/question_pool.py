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
#: Nothing has to survive a crash, and 32 MB of the file are kept in memory.
_SCHEMA = """
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -32000; PRAGMA temp_store = FILE;
CREATE TABLE rows (
    seq INTEGER PRIMARY KEY, split TEXT, entry INTEGER, row INTEGER, own_id TEXT, question TEXT, golds TEXT,
    metadata TEXT, key BLOB, answers BLOB, draw INTEGER, outcome TEXT, first INTEGER
);
-- The rows that are not marked.
CREATE VIEW written AS SELECT * FROM rows WHERE outcome IS NULL;
-- The written rows of train whose question is also in a written row of test, each with the first such row.
CREATE VIEW overlap AS
    SELECT train.seq, test.first FROM written AS train
    JOIN (SELECT key, MIN(seq) AS first FROM written WHERE split = 'test' GROUP BY key) AS test
        ON train.split = 'train' AND train.key = test.key;
"""
#: The source ids that several written rows share, among the entries in the JSON list `entries`.
_REPEATED_IDS = """
    SELECT own_id FROM written
    WHERE entry IN (SELECT value FROM json_each(:entries)) AND own_id IS NOT NULL
    GROUP BY own_id HAVING COUNT(*) > 1
"""
#: The rows of `repeats`.
_REPEATS = """
    SELECT seq, first, outcome FROM rows WHERE first IS NOT NULL
    UNION ALL
    SELECT later.seq, same.first, :other_answers FROM written AS later
    JOIN (SELECT split, key, MIN(seq) AS first FROM written GROUP BY split, key HAVING COUNT(*) > 1) AS same
        ON later.split = same.split AND later.key = same.key AND later.seq > same.first
    UNION ALL
    SELECT seq, first, :overlap_kept FROM overlap
    ORDER BY seq
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
        self._database.executescript(_SCHEMA)
        return self

    def __exit__(self, *error: Any) -> None:
        self._database.close()
        self.path.unlink(missing_ok=True)

    def add(self, entry: int, questions: Iterable[Question]) -> None:
        """Add the questions of an entry."""
        split, name = self.entries[entry].split, self.entries[entry].name
        batch: list[dict[str, Any]] = []
        for question in questions:
            batch.append({"split": split, "entry": entry, **self._columns(name, question)})
            if len(batch) == _BATCH:
                self._insert(batch)
                batch = []
        self._insert(batch)

    def _columns(self, name: str, question: Question) -> dict[str, Any]:
        """Return the columns of a row that come from its question; `name` is the name of its entry."""
        text = question_key(question.question)
        key = _digest(text)
        answers = _digest("\n".join(sorted(golds_key(question))))
        digest = hashlib.blake2b(f"{self.seed}\n{name}\n".encode() + key + answers, digest_size=8).digest()
        return {
            "row": question.row,
            "own_id": question.id,
            "question": question.question,
            "golds": json.dumps(question.golds, ensure_ascii=False),
            "metadata": json.dumps(dict(question.metadata), ensure_ascii=False),
            "key": key,
            "answers": answers,
            "draw": int.from_bytes(digest, "big", signed=True),
        }

    def _insert(self, batch: list[dict[str, Any]]) -> None:
        """Add rows in one transaction."""
        sql = """INSERT INTO rows (split, entry, row, own_id, question, golds, metadata, key, answers, draw)
            VALUES (:split, :entry, :row, :own_id, :question, :golds, :metadata, :key, :answers, :draw)"""
        self._execute("BEGIN")
        self._database.executemany(sql, batch)
        self._execute("COMMIT")

    def _execute(self, sql: str, **values: Any) -> sqlite3.Cursor:
        """Execute a statement with the values of its parameters."""
        return self._database.execute(sql, values)

    def deduplicate(self) -> None:
        """Mark the rows that repeat the question and the answers of an earlier row of their split."""
        self._execute("CREATE INDEX by_key ON rows (split, key, answers)")
        sql = """UPDATE rows SET outcome = :outcome, first = same.first FROM (
                SELECT split, key, answers, MIN(seq) AS first FROM rows
                GROUP BY split, key, answers HAVING COUNT(*) > 1) AS same
            WHERE rows.split = same.split AND rows.key = same.key AND rows.answers = same.answers
                AND rows.seq > same.first"""
        self._execute(sql, outcome=Outcome.DUPLICATE)

    def drop_overlap(self) -> None:
        """Mark the rows of train whose question is also in a written row of test."""
        sql = """UPDATE rows SET outcome = :outcome, first = overlap.first FROM overlap
            WHERE rows.seq = overlap.seq"""
        self._execute(sql, outcome=Outcome.IN_TEST)

    def draw(self, entry: int) -> None:
        """Draw the questions for an entry's requested number of rows, and mark the others.

        All are drawn if the entry requests no number.
        """
        mix_entry = self.entries[entry]
        if mix_entry.take is not None:
            count = min(mix_entry.take * mix_entry.join, 2**62)  # SQLite takes no more than 64 bits
            sql = """UPDATE rows SET outcome = :outcome WHERE entry = :entry AND outcome IS NULL AND
                seq NOT IN (SELECT seq FROM written WHERE entry = :entry ORDER BY draw, seq LIMIT :count)"""
            self._execute(sql, outcome=NOT_DRAWN, entry=entry, count=count)

    def counts(self, entry: int) -> dict[str | None, int]:
        """Return the number of an entry's rows by outcome; the outcome of written rows is None."""
        counts = "SELECT outcome, COUNT(*) FROM rows WHERE entry = :entry GROUP BY outcome"
        return dict(self._execute(counts, entry=entry).fetchall())

    def overlap(self) -> int:
        """Return the number of written rows of train whose question is also in a written row of test."""
        return self._execute("SELECT COUNT(*) FROM overlap").fetchone()[0]

    def questions(self, entry: int | None = None, in_draw_order: bool = False) -> Iterator[PooledQuestion]:
        """Yield the written rows of all entries, or of one, in the order of their sources or of the draw."""
        order = "draw, seq" if in_draw_order else "seq"
        sql = f"SELECT {_COLUMNS} FROM written WHERE :entry IS NULL OR entry = :entry ORDER BY {order}"
        yield from map(_pooled_question, self._execute(sql, entry=entry))

    def at(self, seq: int) -> PooledQuestion:
        """Return the row with the number `seq`."""
        sql = f"SELECT {_COLUMNS} FROM rows WHERE seq = :seq"
        return _pooled_question(self._execute(sql, seq=seq).fetchone())

    def repeated_ids(self, entry: int) -> set[str]:
        """Return the source ids that several written rows with the entry's name and split share."""
        rows = self._execute(_REPEATED_IDS, entries=self._same_source(entry))
        return {own_id for (own_id,) in rows}

    def repeated_id_rows(self, entry: int) -> list[int]:
        """Return the row numbers, in the source's file, of the entry's written rows whose id is repeated."""
        sql = f"SELECT row FROM written WHERE entry = :entry AND own_id IN ({_REPEATED_IDS}) ORDER BY seq"
        rows = self._execute(sql, entry=entry, entries=self._same_source(entry))
        return [row for (row,) in rows]

    def _same_source(self, entry: int) -> str:
        """Return a JSON list of the indexes of all entries with the entry's name and split."""
        sources = [(other.name, other.split) for other in self.entries]
        return json.dumps([index for index, source in enumerate(sources) if source == sources[entry]])

    def is_repeated(self, split: str, question: str) -> bool:
        """Return whether several written rows of the split have this question (with different answers)."""
        sql = "SELECT COUNT(*) FROM written WHERE split = :split AND key = :key"
        return self._execute(sql, split=split, key=_digest(question_key(question))).fetchone()[0] > 1

    def repeats(self) -> Iterator[tuple[PooledQuestion, PooledQuestion, str]]:
        """Yield each row whose question is also in an earlier row or in test, with that row and an outcome.

        Written rows are included: the outcome is `OTHER_ANSWERS` if an earlier row has the same question with
        different answers, and `OVERLAP_KEPT` if the question is also in test.
        """
        repeats = self._execute(
            _REPEATS, other_answers=Outcome.OTHER_ANSWERS, overlap_kept=Outcome.OVERLAP_KEPT
        )
        for seq, first, outcome in repeats:
            yield self.at(seq), self.at(first), outcome


def _pooled_question(columns: tuple) -> PooledQuestion:
    """Return the question in a row of the database with the columns _COLUMNS."""
    seq, split, entry, row, own_id, question, golds, metadata = columns
    content = Question(question, tuple(json.loads(golds)), own_id, row, json.loads(metadata))
    return PooledQuestion(seq, split, entry, content)


def _digest(text: str) -> bytes:
    """Return a hash of a text, of 16 bytes."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
