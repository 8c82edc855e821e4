"""Parses one row of a corpus into a Passage, or raises BadRowError with the fault.

A row is `{"id": ..., "contents": "\\"Title\\"\\ntext"}`, as FlashRAG and Search-R1 write it, or `{"id": ...,
"title": ..., "text": ...}`, which is converted to such contents. If a row has both, its contents count. A
null counts as missing, since a parquet file has all its columns in every row, and so does an empty title,
which is optional. A `"url"` is kept and sent with the document. RAG-R1's tsv, `id<TAB>title   text`, has a
separate parser, which takes everything after the tab as the contents, unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping

from retrieval_server.errors import BadRowError
from retrieval_server.folder.passages import Passage
from retrieval_server.json_kind import json_kind
from retrieval_server.json_limits import read_json_line


def passage_of(row: Mapping[str, object]) -> Passage:
    """Return the passage of a row of named values. Ids may be strings or integers. Raises BadRowError."""
    id_ = row.get("id")
    if isinstance(id_, int) and not isinstance(id_, bool):
        id_ = str(id_)
    if id_ is None:
        raise BadRowError("no 'id'")
    if row.get("contents") is not None:
        contents = _text(row["contents"], "contents")
    elif row.get("text") is not None:
        text = _text(row["text"], "text")
        title = row.get("title")
        contents = text if title in (None, "") else f'"{_text(title, "title")}"\n{text}'
    else:
        raise BadRowError("neither 'contents' nor 'text'")
    url = None if row.get("url") is None else _text(row["url"], "url")
    return Passage(_text(id_, "id"), contents, url)


def parse_jsonl_row(line: str) -> Passage:
    """Return the passage of a line of JSONL. Raises BadRowError if the line is not a valid row."""
    try:
        row = read_json_line(line)
    except (ValueError, RecursionError) as error:
        raise BadRowError(f"not JSON ({error})") from None
    if not isinstance(row, dict):
        raise BadRowError(f"{json_kind(row)}, not a JSON object")
    return passage_of(row)


def parse_tsv_row(line: str) -> Passage:
    """Return the passage of a line of RAG-R1's tsv. Raises BadRowError if the line is not a valid row."""
    columns = line.split("\t")
    if len(columns) != 2:
        raise BadRowError(f"{len(columns)} tab-separated columns instead of 2 (id, then 'title   text')")
    return Passage(_text(columns[0], "id"), _text(columns[1], "contents"))


def _text(value: object, name: str) -> str:
    """Return the value if it is a text that can be written. Raises BadRowError, which names the field."""
    if not isinstance(value, str):
        raise BadRowError(f"{name!r} is {json_kind(value)}, not a string")
    if not value.strip():
        raise BadRowError(f"{name!r} is empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRowError(f"{name!r} holds half a surrogate pair, which no encoding can write") from None
    return value
