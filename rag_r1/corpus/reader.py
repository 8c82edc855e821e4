"""Reads a corpus passage by passage, in the formats that an index build accepts.

`.jsonl` with {"id", "contents"} or {"id", "title", "text"}, `.tsv` with `id<TAB>title   text` (each plain or
.gz), `.parquet` with the same columns, a folder of such files, or an index folder, whose `passages.arrow`
holds the text. The two programs share no code: what is shared are these formats.

Every row comes with the position behind it, from which a scan that was killed goes on. One row, one gzip
block or one batch of a table is in memory at a time. What is read is hostile data: lines have a largest size,
and in place of a passage that cannot be used stands a ValueError with the reason.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tqdm import tqdm

from rag_r1.io.bounded_json import read_json_line
from rag_r1.io.errors import DataError
from rag_r1.io.ordinary_files import open_ordinary
from rag_r1.options.out_folder import INDEX_FILE
from rag_r1.protocols.actions import has_lone_surrogate
from rag_r1.sandbox.parquet import BATCH_ROWS, check_parquet

#: Largest size of a line, unpacked (the same limit as that of an index build).
MAX_LINE_BYTES = 16 * 2**20
SUFFIXES = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz", ".parquet")
_COLUMNS = ("id", "contents", "title", "text", "url")
#: Most characters of a first line of `contents` that is taken for a title.
_MAX_TITLE_CHARACTERS = 400


class CorpusPosition(NamedTuple):
    """Where reading can go on: the file's number, the offset in it (unpacked bytes, of a table rows), and how
    many of its rows have been read."""

    file: int = 0
    offset: int = 0
    row: int = 0


START = CorpusPosition()


@dataclass(frozen=True)
class Passage:
    """One document of a corpus. `id` is None only in a file of passages to be supplied."""

    id: str | None
    contents: str
    url: str | None = None

    @property
    def title(self) -> str | None:
        """The page that the passage is from: the first line without its outer quotes, or what stands before
        three blanks (RAG-R1's tsv); None if there is neither."""
        first, line_break, _ = self.contents.partition("\n")
        if not line_break:
            first, blanks, _ = self.contents.partition("   ")
            if not blanks:
                return None
        first = first.strip()
        if len(first) > 1 and first[0] == first[-1] == '"':
            first = first[1:-1].strip()
        return first if 0 < len(first) <= _MAX_TITLE_CHARACTERS else None

    def row(self) -> dict[str, str]:
        """The passage as a row of JSON lines."""
        row = {"id": self.id or "", "contents": self.contents}
        return row if self.url is None else {**row, "url": self.url}


class Corpus:
    """The files of a corpus, in reading order: `paths` as given, the files of a folder by name."""

    def __init__(self, paths: Sequence[Path], *, ids: bool = True):
        """`ids`: whether a row without an id is a bad row. Raises DataError if a file is missing or of no
        known format."""
        self.ids = ids
        self.files = [file for path in paths for file in _files(Path(path))]

    def fingerprint(self) -> list[list[Any]]:
        """[path, size in bytes, time in ns] of each file; it changes when a file is replaced."""
        stats = ((file, file.stat()) for file in self.files)
        return [[str(file.resolve()), stat.st_size, stat.st_mtime_ns] for file, stat in stats]

    def location(self, position: CorpusPosition) -> str:
        """`FILE, line N` of the row that ends at this position."""
        unit = "row" if self.files[position.file].suffix in (".parquet", ".arrow") else "line"
        return f"{self.files[position.file]}, {unit} {position.row}"

    def rows(
        self, start: CorpusPosition = START, *, progress: bool = True, doing: str = "reading corpus"
    ) -> Rows:
        """(passage or ValueError, position behind it) of every row from `start` on. Raises DataError for a
        broken file."""
        sizes = [file.stat().st_size for file in self.files]
        with tqdm(total=sum(sizes), unit="B", unit_scale=True, desc=doing, disable=not progress) as bar:
            for number in range(start.file, len(self.files)):
                path, offset = self.files[number], sum(sizes[:number])
                first = start if number == start.file else CorpusPosition(number)

                def report(read_bytes: int, offset: int = offset) -> None:
                    bar.update(offset + read_bytes - bar.n)

                reader = _ROWS.get(path.suffix.lower(), _line_rows)
                yield from reader(path, first, self.ids, report)
                report(sizes[number])


Rows = Iterator[tuple[Passage | ValueError, CorpusPosition]]
#: Is called with the number of bytes of a file that have been read.
Report = Callable[[int], object]


def _files(path: Path) -> list[Path]:
    """The files of a path of --corpus. Raises DataError, with the remedy, if there are none."""
    if path.is_dir():
        if (path / INDEX_FILE).is_file():
            return [path / INDEX_FILE]
        if (path / "manifest.json").is_file():
            raise DataError(f"{path}: an index without {INDEX_FILE}. Give the file it was built from")
        if files := sorted(file for file in path.iterdir() if file.is_file() and _is_corpus_file(file)):
            return files
        raise DataError(f"{path}: no index, and no file in it ends in {', '.join(SUFFIXES)}: give another")
    if not _is_corpus_file(path):
        raise DataError(f"{path}: the name must end in one of {', '.join(SUFFIXES)}, or be an index folder")
    if not path.is_file():
        raise DataError(f"{path}: there is no such file: correct the path")
    return [path]


def _is_corpus_file(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES) and not path.name.startswith(".")


def _line_rows(path: Path, start: CorpusPosition, ids: bool, report: Report) -> Rows:
    parse = _tsv_row if path.name.lower().removesuffix(".gz").endswith(".tsv") else _json_row
    for row, position in parsed_lines(path, partial(parse, ids=ids), report, MAX_LINE_BYTES, start):
        yield row, position._replace(file=start.file)


def parsed_lines(
    path: Path, parse: Callable[[str], Any], report: Report, max_bytes: int, start: CorpusPosition = START
) -> Iterator[tuple[Any, CorpusPosition]]:
    """(result of `parse`, position behind the line) for each line that is not blank of a file, plain or .gz.
    A line that is too long, or not UTF-8, or for which `parse` raises ValueError has that error as result.
    Raises DataError for a broken gzip file."""
    with open_ordinary(path) as raw:
        stream: Any = gzip.open(raw) if path.name.lower().endswith(".gz") else raw
        try:
            stream.seek(start.offset)
            for number, (line, offset) in enumerate(_lines(stream, start.offset, max_bytes), start.row + 1):
                if number % 1000 == 0:
                    report(raw.tell())
                value = _parse(line, number == 1, parse, max_bytes)
                if value is not None:
                    yield value, CorpusPosition(0, offset, number)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path}: a broken gzip file ({error}). Fetch it again") from error


def _lines(stream: BinaryIO, offset: int, max_bytes: int) -> Iterator[tuple[bytes | None, int]]:
    """Lines and the offsets (bytes) behind them; None for a line that is too long."""
    while line := stream.readline(max_bytes + 1):
        offset += len(line)
        complete: bytes | None = line
        if len(line) > max_bytes:
            complete = None
            while line and not line.endswith(b"\n"):
                line = stream.readline(max_bytes)
                offset += len(line)
        yield complete, offset


def _parse(line: bytes | None, first: bool, parse: Callable[[str], Any], max_bytes: int) -> Any:
    """The result of `parse` for a line, or the ValueError that says why not; None for a blank line."""
    if line is None:
        return ValueError(f"longer than {max_bytes} bytes")
    try:
        text = line.decode("utf-8-sig" if first else "utf-8").rstrip("\r\n")
        return parse(text) if text.strip() else None
    except UnicodeDecodeError as error:
        return ValueError(f"not UTF-8 ({error.reason} at byte {error.start})")
    except ValueError as error:
        return error


def _json_row(line: str, ids: bool) -> Passage:
    try:
        row = read_json_line(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({str(error)[:100]})") from None
    if not isinstance(row, dict):
        raise ValueError(f"a JSON {type(row).__name__}, not an object")
    return passage_of(row, ids)


def _tsv_row(line: str, ids: bool) -> Passage:
    columns = line.split("\t")
    if len(columns) != 2:
        raise ValueError(f"{len(columns)} tab-separated columns instead of 2 (id, then 'title   text')")
    return Passage(_text(columns[0], "id"), _text(columns[1], "contents"))


def passage_of(row: Mapping[str, Any], ids: bool = True) -> Passage:
    """The passage of a row, whose id may be a whole number. Raises ValueError for one without contents, or,
    with `ids`, without an id."""
    identity = row.get("id")
    if isinstance(identity, int) and not isinstance(identity, bool):
        identity = str(identity)
    if identity is not None:
        identity = _text(identity, "id")
    elif ids:
        raise ValueError("no 'id'")
    if row.get("contents") is not None:
        contents = _text(row["contents"], "contents")
    elif row.get("text") is not None:
        text = _text(row["text"], "text")
        contents = f'"{_text(row["title"], "title")}"\n{text}' if row.get("title") else text
    else:
        raise ValueError("neither 'contents' nor 'text'")
    url = row.get("url")
    return Passage(identity, contents, None if url is None else _text(url, "url"))


def _text(value: Any, name: str) -> str:
    """The value. Raises ValueError if it is not a text, or is empty."""
    if not isinstance(value, str):
        raise ValueError(f"'{name}' is {type(value).__name__}, not a string")
    if not value.strip():
        raise ValueError(f"'{name}' is empty")
    if has_lone_surrogate(value):
        raise ValueError(f"'{name}' holds half of a character (a lone surrogate), which is not text")
    return value


def _parquet_rows(path: Path, start: CorpusPosition, ids: bool, report: Report) -> Rows:
    """The rows of a parquet file, one batch in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_parquet(path, _COLUMNS)
    except OSError as error:
        raise DataError(str(error)) from error
    try:
        with pq.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
            names = [name for name in _COLUMNS if name in file.schema_arrow.names]
            batches = file.iter_batches(BATCH_ROWS, columns=names, use_threads=False)
            yield from _table_rows(batches, start, ids, report, path, file.metadata.num_rows)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a parquet file that can be read ({error}). Fetch it again") from error


def _arrow_rows(path: Path, start: CorpusPosition, ids: bool, report: Report) -> Rows:
    """The rows of an index's text. The file is not memory-mapped, so that only one batch is in memory."""
    import pyarrow as pa

    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
            # The number of rows is not stored: the bar follows the position in the file.
            yield from _table_rows(batches, start, ids, lambda _: report(source.tell()), path, 1)
    except (OSError, ValueError) as error:  # pa.ArrowInvalid is a ValueError
        raise DataError(f"{path}: not an index text that can be read ({error}). Build it again") from error


def _table_rows(
    batches: Iterator[Any], start: CorpusPosition, ids: bool, report: Report, path: Path, n_rows: int
) -> Rows:
    """The rows of the batches behind `start`; `n_rows`: rows of the whole table, for the progress bar."""
    number = 0
    row_bytes = path.stat().st_size / max(n_rows, 1)
    for batch in batches:
        if number + batch.num_rows <= start.offset:
            number += batch.num_rows
            continue
        for values in batch.to_pylist():
            number += 1
            if number <= start.offset:
                continue
            try:
                row: Passage | ValueError = passage_of(values, ids)
            except ValueError as error:
                row = error
            yield row, CorpusPosition(start.file, number, number)
        report(int(row_bytes * number))


_ROWS = {".parquet": _parquet_rows, ".arrow": _arrow_rows}
