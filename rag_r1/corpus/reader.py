"""Reads a corpus passage by passage, in the formats that an index build accepts.

The formats are `.jsonl` with {"id", "contents"} or {"id", "title", "text"}, `.tsv` with `id<TAB>title   text`
(each plain or .gz), `.parquet` with the same columns, a folder of such files, and an index folder, whose
`passages.arrow` holds the text. A null counts as missing. The retrieval server shares these rules, not code.

Each row comes with the position after it, from which an interrupted scan can resume. Only one row, one gzip
block or one batch of a table is in memory at a time. The files are treated as hostile: the length of a line
is limited, and a row that is not a usable passage becomes a ValueError with the reason.
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

from rag_r1.data.files.row_files import refuse_repeated
from rag_r1.io.bounded_json import read_json_line
from rag_r1.io.errors import DataError
from rag_r1.io.ordinary_files import open_ordinary
from rag_r1.options.out_folder import INDEX_FILE
from rag_r1.protocols.actions import has_lone_surrogate
from rag_r1.sandbox.parquet import BATCH_ROWS, check_parquet

#: Most bytes of a line after decompression, the same limit as that of an index build.
MAX_LINE_BYTES = 16 * 2**20
SUFFIXES = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz", ".parquet")
_COLUMNS = ("id", "contents", "title", "text", "url")
#: Most characters of a first line of `contents` that is still taken for a title.
_MAX_TITLE_CHARACTERS = 400


class CorpusPosition(NamedTuple):
    """A position between two rows of a corpus, from which reading can resume."""

    #: Index of the file.
    file: int = 0
    #: Offset in the file: bytes after decompression, or rows of a table.
    offset: int = 0
    #: Number of lines or rows of the file before the position.
    row: int = 0


START = CorpusPosition()


@dataclass(frozen=True)
class Passage:
    """One passage of a corpus."""

    #: None only in a file for --supply, where ids are optional.
    id: str | None
    contents: str
    url: str | None = None

    @property
    def title(self) -> str | None:
        """The title of the passage's page: the first line without its outer quotes, or the text before three
        spaces (RAG-R1's tsv); None if there is neither."""
        first, line_break, _ = self.contents.partition("\n")
        if not line_break:
            first, spaces, _ = self.contents.partition("   ")
            if not spaces:
                return None
        first = first.strip()
        if len(first) > 1 and first[0] == first[-1] == '"':
            first = first[1:-1].strip()
        return first if 0 < len(first) <= _MAX_TITLE_CHARACTERS else None

    def row(self) -> dict[str, str]:
        """Return the passage as an object for a JSONL corpus."""
        row = {"id": self.id or "", "contents": self.contents}
        return row if self.url is None else {**row, "url": self.url}


class Corpus:
    """The files of a corpus in reading order; the files of a folder are sorted by name."""

    def __init__(self, paths: Sequence[Path], *, ids: bool = True):
        """`ids`: whether every row needs an id. Raises DataError for a missing, unknown or repeated file."""
        self.ids = ids
        self.files = [file for path in paths for file in _files(Path(path))]
        refuse_repeated(self.files)

    def fingerprint(self) -> list[list[Any]]:
        """Return [path, size in bytes, modification time in ns] of each file, to detect replaced files."""
        stats = ((file, file.stat()) for file in self.files)
        return [[str(file.resolve()), stat.st_size, stat.st_mtime_ns] for file, stat in stats]

    def location(self, position: CorpusPosition) -> str:
        """Return `FILE, line N` (or `row N`) for the row that ends at this position."""
        unit = "row" if self.files[position.file].suffix.lower() in _ROWS else "line"
        return f"{self.files[position.file]}, {unit} {position.row}"

    def rows(
        self, start: CorpusPosition = START, *, progress: bool = True, doing: str = "reading corpus"
    ) -> Rows:
        """Yield every row from `start` on. Raises DataError for a broken file."""
        sizes = [file.stat().st_size for file in self.files]
        with tqdm(total=sum(sizes), unit="B", unit_scale=True, desc=doing, disable=not progress) as bar:
            for index in range(start.file, len(self.files)):
                path, earlier_bytes = self.files[index], sum(sizes[:index])
                first = start if index == start.file else CorpusPosition(index)

                def report(read_bytes: int, earlier_bytes: int = earlier_bytes) -> None:
                    bar.update(earlier_bytes + read_bytes - bar.n)

                reader = _ROWS.get(path.suffix.lower(), _line_rows)
                yield from reader(path, first, self.ids, report)
                report(sizes[index])


#: Each row as a passage, or as the ValueError that says why it is none, with the position after it.
Rows = Iterator[tuple[Passage | ValueError, CorpusPosition]]
#: A function that is called with the number of bytes of the current file that have been read.
Report = Callable[[int], object]


def _files(path: Path) -> list[Path]:
    """Return the corpus files at a path. Raises DataError, with the remedy, if there are none."""
    if path.is_dir():
        if (path / INDEX_FILE).is_file():
            return [path / INDEX_FILE]
        if (path / "manifest.json").is_file():
            raise DataError(f"{path}: an index without {INDEX_FILE}. Give the file it was built from")
        if files := sorted(file for file in path.iterdir() if file.is_file() and _is_corpus_file(file)):
            return files
        raise DataError(f"{path}: no index, and no file in it ends in {', '.join(SUFFIXES)}: give another")
    if not path.is_file():
        raise DataError(f"{path}: there is no such file: correct the path")
    if not _is_corpus_file(path):
        raise DataError(f"{path}: the name must end in one of {', '.join(SUFFIXES)}, or be an index folder")
    return [path]


def _is_corpus_file(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES) and not path.name.startswith(".")


def _line_rows(path: Path, start: CorpusPosition, ids: bool, report: Report) -> Rows:
    """Yield the rows of a .jsonl or .tsv file."""
    parse = _tsv_row if path.name.lower().removesuffix(".gz").endswith(".tsv") else _json_row
    for row, position in parsed_lines(path, partial(parse, ids=ids), report, MAX_LINE_BYTES, start):
        yield row, position._replace(file=start.file)


def parsed_lines(
    path: Path, parse: Callable[[str], Any], report: Report, max_bytes: int, start: CorpusPosition = START
) -> Iterator[tuple[Any, CorpusPosition]]:
    """Yield (result of `parse`, position after the line) for each line of a file, plain or .gz, that is not
    blank. If a line is too long or not UTF-8, or if `parse` raises a ValueError, the result is the
    ValueError. Raises DataError for a broken gzip file."""
    with open_ordinary(path) as raw:
        stream: Any = gzip.open(raw) if path.name.lower().endswith(".gz") else raw
        try:
            stream.seek(start.offset)
            for number, (line, offset) in enumerate(_lines(stream, start.offset, max_bytes), start.row + 1):
                if number % 1000 == 0:
                    report(raw.tell())
                if (value := _parse(line, number == 1, parse, max_bytes)) is not None:
                    yield value, CorpusPosition(0, offset, number)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path}: a broken gzip file ({error}). Fetch it again") from error


def _lines(stream: BinaryIO, offset: int, max_bytes: int) -> Iterator[tuple[bytes | None, int]]:
    """Yield each line, or None if it is too long, with the offset in bytes after it."""
    while line := stream.readline(max_bytes + 1):
        offset += len(line)
        usable_line = line if len(line) <= max_bytes else None
        while usable_line is None and line and not line.endswith(b"\n"):
            line = stream.readline(max_bytes)
            offset += len(line)
        yield usable_line, offset


def _parse(line: bytes | None, is_first: bool, parse: Callable[[str], Any], max_bytes: int) -> Any:
    """Return the result of `parse` for a line, a ValueError if there is none, or None for a blank line."""
    if line is None:
        return ValueError(f"longer than {max_bytes} bytes")
    try:
        text = line.decode("utf-8-sig" if is_first else "utf-8").rstrip("\r\n")
        return parse(text) if text.strip() else None
    except UnicodeDecodeError as error:
        return ValueError(f"not UTF-8 ({error.reason} at byte {error.start})")
    except ValueError as error:
        return error


def _json_row(line: str, ids: bool) -> Passage:
    """Return the passage in a line of JSON. Raises ValueError if it has none."""
    try:
        row = read_json_line(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({str(error)[:100]})") from None
    if not isinstance(row, dict):
        raise ValueError(f"a JSON {type(row).__name__}, not an object")
    return passage_of(row, ids)


def _tsv_row(line: str, ids: bool) -> Passage:
    """Return the passage in a line of .tsv, which needs an id whatever `ids` says, or raise ValueError."""
    columns = line.split("\t")
    if len(columns) != 2:
        raise ValueError(f"{len(columns)} tab-separated columns instead of 2 (id, then 'title   text')")
    return Passage(_text(columns[0], "id"), _text(columns[1], "contents"))


def passage_of(row: Mapping[str, Any], ids: bool = True) -> Passage:
    """Return the passage of a row. Raises ValueError if it has no contents or, with `ids`, no id."""
    passage_id = row.get("id")
    if isinstance(passage_id, int) and not isinstance(passage_id, bool):
        passage_id = str(passage_id)
    if passage_id is not None:
        passage_id = _text(passage_id, "id")
    elif ids:
        raise ValueError("no 'id'")
    if row.get("contents") is not None:
        contents = _text(row["contents"], "contents")
    elif row.get("text") is not None:
        text = _text(row["text"], "text")
        contents = text if row.get("title") in (None, "") else f'"{_text(row["title"], "title")}"\n{text}'
    else:
        raise ValueError("neither 'contents' nor 'text'")
    url = row.get("url")
    return Passage(passage_id, contents, None if url is None else _text(url, "url"))


def _text(value: Any, name: str) -> str:
    """Return the value. Raises ValueError if it is not a text, or is blank; `name` is the name of its key."""
    if not isinstance(value, str):
        raise ValueError(f"'{name}' is {type(value).__name__}, not a string")
    if not value.strip():
        raise ValueError(f"'{name}' is empty")
    if has_lone_surrogate(value):
        raise ValueError(f"'{name}' holds half of a character (a lone surrogate), which is not text")
    return value


def _parquet_rows(path: Path, start: CorpusPosition, ids: bool, report: Report) -> Rows:
    """Yield the rows of a parquet file, with one batch in memory at a time."""
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
    """Yield the rows of an index's text. The file is not memory-mapped, so only one batch is in memory."""
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
    """Yield the rows of the batches from `start` on. `n_rows`, the size of the table, scales the progress."""
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
