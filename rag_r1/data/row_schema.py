"""Types the columns of a question data set (rows.py), so that veRL can concatenate files of several sources.

All files have the same columns. Only the metadata in `extra_info` differ: SOURCE_METADATA declares those of
data sets that are built from several sources, and `metadata_types` finds those of other rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rag_r1.io.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

#: Keys of `extra_info` that every row has.
RESERVED_INFO = ("id", "question", "index", "split", "protocol")
#: Further keys of `extra_info` in a data set of several sources, which are null if a source lacks them, with
#: their types: the name of an Arrow type, or a list of a type.
SOURCE_METADATA: dict[str, Any] = {
    # Position in the source's file, from 1.
    "source_row": "int64",
    "question_type": "string",
    "hops": "int64",
    "level": "string",
    # The gold passages, by their ids in the corpus.
    "supporting_ids": ["string"],
    # The titles of the pages with the gold passages.
    "supporting_titles": ["string"],
    # The answers of the intermediate steps.
    "step_answers": ["string"],
    # The questions that a row joins, and the gold answers of each.
    "parts": ["string"],
    "part_answers": [["string"]],
}


def metadata_types(metadata: Sequence[Mapping[str, Any]]) -> list[tuple[str, pa.DataType]]:
    """Return the keys of the rows' metadata, sorted, with their Arrow types; `metadata` has one mapping for
    each row. Raises DataError for a key with values of several types, as rows from several files may have,
    since a column has one type."""
    import pyarrow as pa

    types = []
    for name in sorted({name for values in metadata for name in values}):
        try:
            types.append((name, pa.array([values.get(name) for values in metadata]).type))
        except (pa.ArrowException, OverflowError) as error:
            fault = f"extra_info.{name} has values of several types ({error})"
            raise DataError(f"{fault}: make them alike, or use these files separately") from error
    return types


def arrow_type(kind: Any) -> pa.DataType:
    """Return the Arrow type for a type in the notation of `SOURCE_METADATA`."""
    import pyarrow as pa

    return pa.list_(arrow_type(kind[0])) if isinstance(kind, list) else pa.type_for_alias(kind)


def row_schema(extra_info_fields: Sequence[tuple[str, pa.DataType]]) -> pa.Schema:
    """Return the schema of veRL's columns, with these further keys in `extra_info`."""
    import pyarrow as pa

    text = pa.string()
    message = pa.struct([("role", text), ("content", text)])
    truth = pa.struct([("target", pa.list_(text))])
    info_fields = [(name, pa.int64() if name == "index" else text) for name in RESERVED_INFO]
    return pa.schema(
        [
            ("data_source", text),
            ("prompt", pa.list_(message)),
            ("ability", text),
            ("reward_model", pa.struct([("style", text), ("ground_truth", truth)])),
            ("extra_info", pa.struct([*info_fields, *extra_info_fields])),
            ("agent_name", text),
        ]
    )
