"""The tables of the explorer's cache (cache.py), with the types of their columns in DuckDB.

    files          file_id, ...   the record files that have been read, with the fields of FileState
    trajectories   tid, ...       the columns of a trajectory, and where its record is
    texts          tid, part      its texts: question, answer, generated text and arguments of calls
    passages       pid, part      a passage; pid is a hash of its text
    shown          tid, pid       the passages that a trajectory was shown

The last three are for the search of text (texts.py).
"""

from __future__ import annotations

import pyarrow as pa

#: What the page's table, the filters and the API know about a trajectory, in the order of the page's table.
#: docs/guides/explorer.md explains the columns.
COLUMNS = {
    "tid": "BIGINT", "id": "VARCHAR", "run": "VARCHAR", "kind": "VARCHAR", "step": "BIGINT",
    "split": "VARCHAR", "source": "VARCHAR", "question": "VARCHAR", "answer": "VARCHAR",
    "golds": "VARCHAR[]", "right": "BOOLEAN", "score": "DOUBLE", "status": "VARCHAR", "masked": "BOOLEAN",
    "turns": "BIGINT", "searches": "BIGINT", "repeated": "BIGINT", "tool_failures": "BIGINT",
    "prompt_tokens": "BIGINT", "generated_tokens": "BIGINT", "observed_tokens": "BIGINT",
    "seconds": "DOUBLE", "question_key": "VARCHAR", "group": "VARCHAR", "cause": "VARCHAR",
    "checkpoint": "VARCHAR", "reward_terms": "MAP(VARCHAR, DOUBLE)",
}  # fmt: skip
#: Where a record is: its file, its position there (record_files/lines.py), and its number of bytes.
_POSITION = {"file_id": "BIGINT", "base": "BIGINT", "offset": "BIGINT", "length": "BIGINT"}
#: The columns of the table `files`, which are the fields of FileState in their order.
FILE_COLUMNS = {
    "file_id": "INTEGER PRIMARY KEY", "path": "VARCHAR", "run": "VARCHAR", "folder": "VARCHAR",
    "kind": "VARCHAR", "inode": "UBIGINT", "size": "BIGINT", "mtime_ns": "BIGINT", "head": "BLOB",
    "base": "BIGINT", "offset": "BIGINT", "lines": "BIGINT", "broken": "BIGINT", "faults": "VARCHAR[]",
}  # fmt: skip
#: The type of a part of a text.
_PART = "VARCHAR USING COMPRESSION zstd"
#: The columns of all tables, by the names of the tables.
TABLES = {
    "files": FILE_COLUMNS,
    "trajectories": {**COLUMNS, **_POSITION},
    "texts": {"tid": "BIGINT", "part": _PART},
    "passages": {"pid": "BIGINT", "part": _PART},
    "shown": {"tid": "BIGINT", "pid": "BIGINT"},
}
#: The types in Arrow for the types of all tables but `files`.
_ARROW = {
    "BIGINT": pa.int64(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(),
    "VARCHAR": pa.string(), "VARCHAR[]": pa.list_(pa.string()), _PART: pa.string(),
    "MAP(VARCHAR, DOUBLE)": pa.map_(pa.string(), pa.float64()),
}  # fmt: skip


def arrow_schema(table: str) -> pa.Schema:
    """Return the schema in Arrow of the rows that are added to a table, which is any but `files`."""
    return pa.schema({name: _ARROW[kind] for name, kind in TABLES[table].items()})
