"""Streams the questions of a source, from its file or from the Hub, one row at a time.

`build.py` reads every entry of a mixture through `read_source`: once for the check of the first rows, and
once for the set. A row that cannot be used is yielded as its error, so that the caller decides about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from data_process.mixture import FLAGS, MixEntry
from data_process.sources import SOURCES
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.data.files.first_rows import check_first_rows
from rag_r1.data.files.hub_rows import hub_rows
from rag_r1.data.files.questions import Question
from rag_r1.data.files.row_files import ACCEPTED, Rows, open_rows
from rag_r1.io.errors import DataError


def read_source(entry: MixEntry) -> Iterator[tuple[int, Question | ValueError]]:
    """Yield the number of each row, from 1, with its question or, for a bad row, the error.

    Memory does not grow with the number of rows. Raises DataError if the source cannot be read, or if it has
    no usable row.
    """
    usable = 0
    bad = BadRows()
    with _open_rows(entry) as rows:
        for number, row in rows:
            try:
                question = replace(entry.kind.read_row(row, SOURCES), row=number)
            except ValueError as error:
                bad.add(f"row {number}", error)
                yield number, error
                continue
            usable += 1
            yield number, question
    if not usable:
        accepted = f". Accepted are {ACCEPTED}" if entry.file else ""
        reason = bad.named() or "it has no rows"
        raise DataError(f"no usable question in {entry.location}: {reason}{accepted}")


def has_first_rows(entry: MixEntry) -> bool:
    """Return True. Raises DataError if no row is usable among the first ones of an entry."""
    check_first_rows(entry.location, read_source(entry))
    return True


def check_rows(entry: MixEntry, skip_bad_rows: bool) -> None:
    """Read all rows of an entry. Raises DataError if that fails, and for bad rows unless they are skipped."""
    bad = BadRows()
    for row, question in read_source(entry):
        if isinstance(question, ValueError):
            bad.add(f"{entry.location}, row {row}", question)
    bad.refuse(skip_bad_rows, "nothing was written")


@contextmanager
def _open_rows(entry: MixEntry) -> Iterator[Rows]:
    """Open the rows of an entry while the block runs.

    Raises DataError if the rows cannot be read, or if their columns belong to another source.
    """
    kind = entry.kind
    if entry.file is not None:
        with open_rows(
            entry.file, kind.columns, kind.list_columns, within=kind.array_key, header=kind.csv_header
        ) as (columns, rows):
            if columns:
                kind.check_columns(entry.location, columns, SOURCES)
            yield rows
        return
    hub = entry.hub
    remedy = f"give a file instead: --{FLAGS[entry.split]} {kind.name}=FILE"
    rows, columns = hub_rows(str(hub), hub.dataset, hub.config, hub.split, kind.columns, remedy, hub.files)
    kind.check_columns(str(hub), columns, SOURCES)
    yield iter(rows)
