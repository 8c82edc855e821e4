"""Fills and searches the tables for the search of text: `texts`, `passages` and `shown` (schema.py).

Trajectories of the same question are shown the same passages many times. So a passage is stored by itself,
and these tables are much smaller than the records. All texts are in lower case. A long text is divided into
parts, which overlap by the length of the longest text that can be searched for. The passages that were added
last are remembered, so that they are not added again; an older passage may be added twice, which does no
harm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from rag_r1.explorer.schema import arrow_schema
from rag_r1.protocols.actions import well_formed

#: Length of the longest text that can be searched for, and of a part without its overlap, in characters.
LONGEST_TEXT, PART_CHARACTERS = 500, 8000
#: Statements that delete the texts of deleted trajectories. Passages are kept, since others may share them.
REMOVE_ORPHANS = tuple(
    f"DELETE FROM {table} WHERE tid NOT IN (SELECT tid FROM trajectories)" for table in ("texts", "shown")
)
#: At least this number of passages that were added last is remembered, and at most twice as many.
_MAX_RECENT = 100_000


def text_condition(count: int) -> str:
    """Return the condition of trajectories that contain one of `count` texts.

    Its parameters are all texts, and then all texts once more.
    """
    parts = " OR ".join(["contains(part, ?)"] * count)
    return (
        f"tid IN (SELECT tid FROM texts WHERE {parts} UNION ALL "
        f"SELECT tid FROM shown WHERE pid IN (SELECT pid FROM passages WHERE {parts}))"
    )


class TextTables:
    """Makes the rows that are added to the three tables. It must be used by one thread only."""

    def __init__(self) -> None:
        #: Ids of the passages that were added last, in two generations.
        self._recent: set[int] = set()
        self._older: set[int] = set()

    def new_rows(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Table]:
        """Make the rows for new trajectories, which have `tid`, `texts` and `passages`, by table."""
        texts: list[tuple[int, str]] = []
        passages: list[tuple[int, str]] = []
        shown: list[tuple[int, int]] = []
        for row in rows:
            texts += [(row["tid"], part) for part in text_parts(row["texts"])]
            keys = {_key(passage): passage for passage in row["passages"]}
            shown += [(row["tid"], key) for key in keys]
            # A difference of sets would be slower, because it may go through all of `_recent`.
            new = [key for key in keys if key not in self._recent and key not in self._older]
            passages += [(key, part) for key in new for part in text_parts([keys[key]])]
            self._recent.update(keys)
            if len(self._recent) > _MAX_RECENT:
                self._recent, self._older = set(), self._recent
        tables = {"texts": texts, "passages": passages, "shown": shown}
        return {name: _arrow_table(name, table_rows) for name, table_rows in tables.items()}


def text_parts(texts: Iterable[str]) -> list[str]:
    """Join texts by line breaks, in lower case, and divide the result into parts that overlap."""
    text = well_formed("\n".join(texts)).lower()
    starts = range(0, max(len(text), 1), PART_CHARACTERS)
    return [text[start : start + PART_CHARACTERS + LONGEST_TEXT] for start in starts]


def _key(text: str) -> int:
    """Return a hash of a passage that fits into a BIGINT."""
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _arrow_table(name: str, rows: Sequence[tuple[int, Any]]) -> pa.Table:
    """Make the rows of a table with two columns."""
    return pa.Table.from_arrays([[row[i] for row in rows] for i in range(2)], schema=arrow_schema(name))
