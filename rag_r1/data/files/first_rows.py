"""Looks at the first rows of a file before it is read whole: a wrong file, or wrong columns, show there.

Single rows that cannot be used are left to the reading, which counts and names them all (bad_rows.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from rag_r1.io.errors import DataError

#: Number of rows: in a file that is wrong as a whole, these are all wrong.
_CHECKED_ROWS = 20


def check_first_rows(
    name: object, rows: Iterable[tuple[int, Any]], parse: Callable[[Any], object] = lambda row: None
) -> None:
    """Raises DataError if a file has no rows, or if none of the first can be used. `rows`: with their
    numbers. A row that is a ValueError, or for which `parse` raises one, cannot be used."""
    first_fault = None
    for number, row in islice(rows, _CHECKED_ROWS):
        try:
            if isinstance(row, ValueError):
                raise row
            parse(row)
            return
        except ValueError as error:
            first_fault = first_fault or f"row {number}: {error}"
    if first_fault is None:
        raise DataError(f"{name} has no rows: give another file")
    raise DataError(
        f"{name}: no usable row among its first ones ({first_fault}): correct it, or give another"
    )
