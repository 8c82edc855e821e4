"""The question pool of a set that is being built, in a database file.

The rows of all sources are added, in the order of the sources (validation first). Then rows that are not to
be written are marked, one step after the other:

    deduplicate   rows whose question and answers an earlier row of the split has
    drop_overlap  rows of train whose question is in test
    draw          rows of a source beyond the number that is to be drawn, by a seeded hash of the question

rag_r1/data/files/duplicates.py says which questions are the same. The draw depends on nothing but the seed,
the source's name and the question: other sources, or the order of the rows, do not change it, and a smaller
draw is a part of a larger one.
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

#: The mark of rows that are not drawn; the other marks are those of `Outcome`.
NOT_DRAWN = "not drawn"
_BATCH = 2000
_TABLE = """
CREATE TABLE rows (
    seq INTEGER PRIMARY KEY, split TEXT, entry INTEGER, row INTEGER, own_id TEXT, question TEXT, golds TEXT,
    metadata TEXT, key BLOB, answers BLOB, draw INTEGER, outcome TEXT, first INTEGER
)
"""
_COLUMNS = "seq, split, entry, row, own_id, question, golds, metadata"


@dataclass(frozen=True)
class PooledQuestion:
    """A question in the pool. `seq`: its number there, from 1; `entry`: the number of its entry, from 0."""

    seq: int
    split: str
    entry: int
    question: Question


class QuestionPool:
    """The database; a context manager, which deletes the file when it ends. `entries` are numbered from 0."""

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
        """The values of a row from the column `row` on; `name`: of its entry."""
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
        self._database.execute("BEGIN")
        self._database.executemany(
            "INSERT INTO rows (split, entry, row, own_id, question, golds, metadata, key, answers, draw) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            batch,
        )
        self._database.execute("COMMIT")

    def deduplicate(self) -> None:
        """Mark all but the first of the rows of a split with the same question and the same answers."""
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
        """Mark the rows of train whose question is that of a written row of test."""
        self._database.execute(
            f"UPDATE rows SET outcome = ?, first = tested.first FROM {_TESTED} AND {_WRITTEN}",
            (Outcome.IN_TEST,),
        )

    def draw(self, entry: int) -> None:
        """Mark the rows of an entry that are not drawn, if it has more than are to be drawn."""
        mix_entry = self.entries[entry]
        if mix_entry.take is not None:
            self._database.execute(
                f"UPDATE rows SET outcome = ? WHERE entry = {entry} AND outcome IS NULL AND seq NOT IN "
                f"(SELECT seq FROM rows WHERE entry = {entry} AND outcome IS NULL ORDER BY draw, seq "
                f"LIMIT {mix_entry.take * mix_entry.join})",
                (NOT_DRAWN,),
            )

    def counts(self, entry: int) -> dict[str | None, int]:
        """The number of rows of an entry by outcome; None: those that are written."""
        counts = f"SELECT outcome, COUNT(*) FROM rows WHERE entry = {entry} GROUP BY outcome"
        return dict(self._database.execute(counts).fetchall())

    def overlap(self) -> int:
        """How many written rows of train have the question of a written row of test."""
        return self._database.execute(f"SELECT COUNT(*) FROM rows, {_TESTED} AND {_WRITTEN}").fetchone()[0]

    def questions(self, entry: int | None = None, in_draw_order: bool = False) -> Iterator[PooledQuestion]:
        """Yields the rows that are written (those of one entry, if given), in the order of their sources, or
        of the draw."""
        condition = "outcome IS NULL" + (f" AND entry = {entry}" if entry is not None else "")
        order = "draw, seq" if in_draw_order else "seq"
        yield from map(
            _to_row, self._database.execute(f"SELECT {_COLUMNS} FROM rows WHERE {condition} ORDER BY {order}")
        )

    def at(self, seq: int) -> PooledQuestion:
        """The row with a number."""
        return _to_row(
            self._database.execute(f"SELECT {_COLUMNS} FROM rows WHERE seq = ?", (seq,)).fetchone()
        )

    def repeated_ids(self, entry: int) -> set[str]:
        """The own ids that several written rows share, among those under the entry's name in its split."""
        return {own_id for (own_id,) in self._database.execute(self._repeated_ids(entry))}

    def repeated_id_rows(self, entry: int) -> list[int]:
        """The numbers, in its file, of the written rows of an entry whose own id is repeated."""
        rows = self._database.execute(
            f"SELECT row FROM rows WHERE entry = {entry} AND outcome IS NULL "
            f"AND own_id IN ({self._repeated_ids(entry)}) ORDER BY seq"
        )
        return [row for (row,) in rows]

    def _repeated_ids(self, entry: int) -> str:
        """The SQL query for `repeated_ids`."""
        this = self.entries[entry]
        entries = [i for i, e in enumerate(self.entries) if (e.name, e.split) == (this.name, this.split)]
        return (
            f"SELECT own_id FROM rows WHERE entry IN ({', '.join(map(str, entries))}) AND outcome IS NULL "
            "AND own_id IS NOT NULL GROUP BY own_id HAVING COUNT(*) > 1"
        )

    def is_repeated(self, split: str, question: str) -> bool:
        """Whether several written rows of the split have this question (with different answers)."""
        rows = self._database.execute(
            "SELECT COUNT(*) FROM rows WHERE split = ? AND key = ? AND outcome IS NULL",
            (split, _digest(question_key(question))),
        )
        return rows.fetchone()[0] > 1

    def repeats(self) -> Iterator[tuple[PooledQuestion, PooledQuestion, str]]:
        """Yields each row whose question an earlier row, or one of test, has; that other row; and the outcome
        of the first."""
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


#: SQL: the questions of written rows of test, joined with the rows of train that have them.
_TESTED = (
    "(SELECT key, MIN(seq) AS first FROM rows WHERE split = 'test' AND outcome IS NULL GROUP BY key) "
    "AS tested WHERE rows.split = 'train' AND rows.key = tested.key"
)
_WRITTEN = "rows.outcome IS NULL"


def _to_row(columns: tuple) -> PooledQuestion:
    seq, split, entry, row, own_id, question, golds, metadata = columns
    return PooledQuestion(
        seq, split, entry, Question(question, tuple(json.loads(golds)), own_id, row, json.loads(metadata))
    )


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
