"""Reads the rows of a file one by one, in any of several formats.

The formats are JSON (an array, or one object per line), CSV and TSV with a header, each also gzipped, and
parquet. `.csv`, `.tsv` and `.parquet` are recognised by the name of the file; JSON arrays, JSON lines and
gzip are recognised by the content. A row that cannot be decoded becomes a BrokenRowError, and reading
continues. A file is never in memory as a whole: json_array.py reads an array element by element (HotpotQA's
has 500 MB).
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO

from rag_r1.data.files.json_array import elements
from rag_r1.io.bounded_json import read_json_line
from rag_r1.io.errors import ICONV, DataError, reason_of
from rag_r1.io.ordinary_files import open_ordinary
from rag_r1.sandbox.parquet import BATCH_ROWS, check_parquet

ACCEPTED = (
    ".json (an array or one object per line), .jsonl, .csv and .tsv (with a header), each also with .gz "
    "appended, and .parquet"
)
#: Most bytes or characters of a line: a few kilobytes of gzip can unpack to gigabytes without a line break.
MAX_LINE = 16 << 20
#: Most values of a row.
MAX_VALUES = 500_000
#: Most bytes of white space before the first row.
_MAX_SPACE = 1 << 20
_DELIMITERS = {".csv": ",", ".tsv": "\t"}

#: (number from 1, row or BrokenRowError).
Rows = Iterator[tuple[int, Any]]


class BrokenRowError(DataError):
    """A row that cannot be decoded; the message says why. A reader yields it in place of the row, and does
    not raise it."""


@contextmanager
def open_rows(
    path: Path,
    columns: Collection[str],
    lists: Collection[str],
    *,
    within: str | None = None,
    header: Sequence[str] | None = None,
) -> Iterator[tuple[list[str] | None, Rows]]:
    """Open a file, and yield the names of its columns (None for JSON) and an iterator over its rows.

    Only `columns` are read of a parquet file. A CSV cell in one of the columns `lists` may be a JSON list.
    The rows of a JSON file may also be the array under the first key of an object, if that key is `within`.
    `header` has the columns of a CSV file without a header, which is a file whose first line has no cell
    `question`. Raises DataError if the file cannot be read, either at once or while its rows are read.
    """
    name = path.name.lower().removesuffix(".gz")
    try:
        if name.endswith(".parquet"):
            yield _parquet_rows(path, columns)
            return
        with open_bytes(path) as file:
            refuse_utf16(path, file)
            delimiter = next((mark for suffix, mark in _DELIMITERS.items() if name.endswith(suffix)), None)
            if delimiter is None:
                yield None, _json_rows(path, file, within)
            else:
                yield _table_rows(path, file, delimiter, columns, lists, header)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is a broken gzip file ({error}): fetch it again") from error
    except (OSError, RecursionError) as error:
        raise DataError(f"cannot read {path}: {reason_of(error)}: give another file") from error


def refuse_repeated(paths: Sequence[str | Path]) -> None:
    """Raise DataError for a file that is named twice, also by another path or a link."""
    files = [os.path.realpath(path) for path in paths]  # unlike Path.resolve, also for a loop of links
    counts = Counter(files)
    if repeated := [path for path, file in zip(paths, files, strict=True) if counts[file] > 1]:
        same = (path for path in repeated if os.path.realpath(path) == os.path.realpath(repeated[0]))
        first, *others = dict.fromkeys(map(str, same))
        note = f" (also as {', '.join(others)})" if others else ""
        raise DataError(f"{first} is given twice{note}: leave one out")


def short_text(value: Any, length: int = 60) -> str:
    """Return the `repr` of a value, cut to `length` characters, for a message of one line."""
    text = repr(value)
    return text if len(text) <= length else text[: length - 3] + "..."


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open the file as a stream of bytes, decompressed if it is gzipped."""
    with open_ordinary(path) as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not is_gzip:
            yield raw
            return
        with gzip.open(raw) as file:
            yield file


def refuse_utf16(path: Path, file: BinaryIO, accepted: str = ACCEPTED) -> None:
    """Check the encoding of the file, and leave it at its beginning. Raises DataError, with the command that
    converts the file, if it is UTF-16 or UTF-32, which spreadsheets write, and for a file that only begins
    like these or has null bytes; `accepted` are the files to give instead."""
    begin = file.read(1024)
    file.seek(0)
    not_text = DataError(f"{path} is not text: give another file. Accepted are {accepted}")
    if (encoding := _wide_encoding(begin[:4])) is not None:
        try:
            codecs.getincrementaldecoder(encoding)().decode(begin)
        except UnicodeDecodeError as error:
            raise not_text from error
        convert = f"iconv -f {encoding} -t UTF-8"
        file_name = quote(str(path))
        is_gzip = isinstance(file, gzip.GzipFile)  # whatever the name is: zcat reads stdin
        command = f"zcat < {file_name} | {convert}" if is_gzip else f"{convert} {file_name}"
        raise DataError(f"{path} is not UTF-8 but {encoding}: convert it (`{command} > NEW`), and give NEW")
    if b"\0" in begin:
        raise not_text


def _wide_encoding(begin: bytes) -> str | None:
    """Return the name of the encoding if a text that begins with these bytes is in UTF-16 or UTF-32."""
    if begin in (b"\xff\xfe\0\0", b"\0\0\xfe\xff"):
        return "UTF-32"
    if begin[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "UTF-16"
    # Without a byte-order mark, one of the two bytes of an ASCII character is null.
    if len(begin) > 1 and (begin[0] == 0) != (begin[1] == 0):
        return "UTF-16BE" if begin[0] == 0 else "UTF-16LE"
    return None


def _json_rows(path: Path, file: BinaryIO, within: str | None) -> Rows:
    """Yield the rows of a JSON array, or of a file with a JSON value on each line. The numbers count elements
    or lines."""
    start, first = _start(file)
    wrapped = re.match(rb'\{\s*"%s"\s*:\s*\[' % re.escape(within.encode()), first) if within else None
    if not wrapped and not first.startswith(b"["):
        file.seek(0)
        for number, line in enumerate(_lines(path, file), 1):
            if line.strip():
                row = parse_json_line(line)
                is_first_bad = number == 1 and isinstance(row, BrokenRowError)
                if is_first_bad and path.name.lower().endswith(".gz") and not isinstance(file, gzip.GzipFile):
                    raise gzip.BadGzipFile("neither gzip nor JSON")
                yield number, row
        return
    file.seek(start)
    text = io.TextIOWrapper(file, encoding="utf-8")
    try:
        yield from enumerate(elements(text, wrapped.end() if wrapped else 1, ends_text=not wrapped), 1)
    except ValueError as error:
        raise DataError(
            f"{path} begins as a JSON array but is not one: {error}. It is broken or cut: fetch it again"
        ) from error


def _lines(path: Path, file: Any) -> Iterator[Any]:
    """Yield the lines of a file of bytes or of text. Raises DataError for a line that is too long."""
    # `read(0)` is what readline returns at the end: b"" or "".
    for number, line in enumerate(iter(partial(file.readline, MAX_LINE + 1), file.read(0)), 1):
        if len(line) > MAX_LINE:
            raise DataError(f"{path}, line {number}: longer than {MAX_LINE >> 20} MiB: remove or split it")
        yield line


def _start(file: BinaryIO) -> tuple[int, bytes]:
    """Return the offset in bytes at which the text begins, after white space and a byte-order mark, and the
    first 101 bytes of the text."""
    byte = file.read(1)
    for _ in range(_MAX_SPACE):
        if not byte or not (byte.isspace() or byte in b"\xef\xbb\xbf"):
            break
        byte = file.read(1)
    return max(file.tell() - 1, 0), byte + file.read(100)  # enough for the first key of an object


def parse_json_line(line: bytes) -> Any:
    """Return the JSON value of a line, or a BrokenRowError (which is not raised) if it has none."""
    try:
        return read_json_line(line, MAX_VALUES)
    except UnicodeDecodeError as error:
        return BrokenRowError(f"{reason_of(error)}: convert the file with {ICONV}, or fetch it again")
    except (ValueError, RecursionError) as error:
        return BrokenRowError(f"not JSON: {short_text(str(error))}")


def _table_rows(
    path: Path,
    file: BinaryIO,
    delimiter: str,
    columns: Collection[str],
    lists: Collection[str],
    default_header: Sequence[str] | None,
) -> tuple[list[str], Rows]:
    """Return the columns and the rows of a CSV file, none of whose `columns` may be there twice.
    `default_header` is that of a file without a header.
    Bytes that are not UTF-8 become lone surrogates, which `clean_question` rejects."""
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader: Iterator[list[str]] = csv.reader(_lines(path, text), delimiter=delimiter)
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise DataError(f"{path} has no header that can be read: {error}") from error
    if default_header and header and "question" not in map(str.lower, header):
        reader, header = chain([header], reader), list(default_header)
    if repeated := [name for name in dict.fromkeys(header) if name in columns and header.count(name) > 1]:
        raise DataError(f"{path} has the column `{repeated[0]}` twice: rename or remove one")
    return header, _cells(reader, header, lists)


def _cells(reader: Any, header: list[str], lists: Collection[str]) -> Rows:
    """Yield the rows as mappings without empty cells. Row 1 is the first one below the header. Blank lines
    are not counted."""
    number = 0
    while True:
        number += 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, BrokenRowError(f"not a row of the table: {error}")
            continue
        if not cells:  # a blank line
            number -= 1
            continue
        if len(cells) > len(header):
            yield number, BrokenRowError(f"{len(cells)} cells, but the header names {len(header)} columns")
            continue
        row = {name: cell for name, cell in zip(header, cells, strict=False) if cell}
        try:
            yield number, {name: _parsed(cell, name) if name in lists else cell for name, cell in row.items()}
        except BrokenRowError as error:
            yield number, error


def _parsed(cell: str, name: str) -> Any:
    """Return a cell of the column `name` as a list if it is a JSON list, and otherwise as text. Raises
    BrokenRowError for a broken list."""
    if not cell.lstrip().startswith("["):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        raise BrokenRowError(
            f'`{name}` begins as a list but is not JSON, ["a", "b"]: {short_text(cell)}'
        ) from None


def _parquet_rows(path: Path, columns: Collection[str]) -> tuple[list[str], Rows]:
    """Return the names of all columns, and the rows restricted to `columns`."""
    import pyarrow
    import pyarrow.parquet as pq

    def rows() -> Rows:
        try:
            batches = file.iter_batches(BATCH_ROWS, columns=[name for name in columns if name in names])
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)
        except (pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read to its end: {error}") from error

    check_parquet(path, list(columns))
    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
    except pyarrow.ArrowInvalid as error:
        why = str(error).rstrip(".")
        raise DataError(f"{path} is not a parquet file: {why}: give another, or make it again") from error
    return names, rows()
