"""The text that is searched: what a trajectory says itself, and each passage once, however often shown.

    texts      tid, part    question, answer, generated text, arguments of calls
    passages   pid, part    a passage; pid is a hash of its text
    shown      tid, pid     the passages of a trajectory

Trajectories of a question are shown the same passages again and again, so this is a fraction of the records.
All is in lower case. A long text stands in parts, which overlap by the longest text that can be searched for.
Only of the last passages it is known that they are there already; one that is added twice does no harm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from rag_r1.protocols.actions import well_formed

#: Characters of the longest text that is searched for, and of a part without the overlap.
LONGEST_TEXT, PART_CHARACTERS = 500, 8000
#: The tables, their columns and types.
TABLES = {
    "texts": {"tid": "BIGINT", "part": "VARCHAR USING COMPRESSION zstd"},
    "passages": {"pid": "BIGINT", "part": "VARCHAR USING COMPRESSION zstd"},
    "shown": {"tid": "BIGINT", "pid": "BIGINT"},
}
#: Removes the texts of trajectories that are not there any more; their passages may be those of others.
REMOVE_ORPHANS = tuple(
    f"DELETE FROM {table} WHERE tid NOT IN (SELECT tid FROM trajectories)" for table in ("texts", "shown")
)
#: Least number of last passages that are known to be there.
_MAX_RECENT = 100_000


def text_condition(count: int) -> str:
    """The condition of trajectories that contain one of `count` texts. Its parameters are all of the texts,
    twice."""
    parts = " OR ".join(["contains(part, ?)"] * count)
    return (
        f"tid IN (SELECT tid FROM texts WHERE {parts} UNION ALL "
        f"SELECT tid FROM shown WHERE pid IN (SELECT pid FROM passages WHERE {parts}))"
    )


class TextTables:
    """Makes the additions to the three tables; for one thread."""

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._older: set[int] = set()

    def of(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Table]:
        """Returns the rows to add to each table for these trajectories, which have `tid`, `texts` and
        `passages`."""
        texts: list[tuple[int, str]] = []
        passages: list[tuple[int, str]] = []
        shown: list[tuple[int, int]] = []
        for row in rows:
            texts += [(row["tid"], part) for part in text_parts(row["texts"])]
            keys = {_key(passage): passage for passage in row["passages"]}
            shown += [(row["tid"], key) for key in keys]
            # Not by the difference of sets, which may go through all of `_recent`.
            new = [key for key in keys if key not in self._recent and key not in self._older]
            passages += [(key, part) for key in new for part in text_parts([keys[key]])]
            self._recent.update(keys)
            if len(self._recent) > _MAX_RECENT:
                self._recent, self._older = set(), self._recent
        return {
            "texts": _table(("tid", "part"), texts),
            "passages": _table(("pid", "part"), passages),
            "shown": _table(("tid", "pid"), shown),
        }


def text_parts(texts: Iterable[str]) -> list[str]:
    """The texts, joined by line breaks and in lower case, in parts that overlap by LONGEST_TEXT."""
    text = well_formed("\n".join(texts)).lower()
    starts = range(0, max(len(text), 1), PART_CHARACTERS)
    return [text[start : start + PART_CHARACTERS + LONGEST_TEXT] for start in starts]


def _key(text: str) -> int:
    """A hash of a passage, as BIGINT."""
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _table(names: tuple[str, str], rows: Sequence[tuple[int, Any]]) -> pa.Table:
    """A table with two columns, of which `part` has texts and the others numbers."""
    kinds = (pa.int64(), pa.string() if names[1] == "part" else pa.int64())
    columns = (pa.array([row[i] for row in rows], kinds[i]) for i in range(2))
    return pa.table(dict(zip(names, columns, strict=True)))
