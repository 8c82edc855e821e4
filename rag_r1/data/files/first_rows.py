"""Checks the first rows of a file before all of it is read, to detect a wrong file or wrong columns.

Single bad rows are not an error here: the reader of the file counts and names them all (bad_rows.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from rag_r1.data.files.bad_rows import BadRows
from rag_r1.io.errors import DataError

#: Number of rows that are checked. If all of them are bad, the whole file is assumed to be wrong.
_CHECKED_ROWS = 20


def check_first_rows(
    name: object, rows: Iterable[tuple[int, Any]], parse: Callable[[Any], object] = lambda row: None
) -> None:
    """Check that a file has a usable row among its first ones. `rows` has (number, row) pairs; a row cannot
    be used if it is a ValueError or if `parse` raises one. Raises DataError, which begins with `name`, if the
    file has no rows, or if none of the first rows can be used."""
    bad = BadRows()
    for number, row in islice(rows, _CHECKED_ROWS):
        try:
            if isinstance(row, ValueError):
                raise row
            parse(row)
            return
        except ValueError as error:
            bad.add(f"row {number}", error)
    if not bad.count:
        raise DataError(f"{name} has no rows: give another file")
    raise DataError(
        f"{name}: no usable row among its first ones ({bad.named()}): correct it, or give another"
    )
