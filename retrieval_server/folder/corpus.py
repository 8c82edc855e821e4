"""Reads a corpus row by row from one file, several files, or a folder.

The name of a file determines its format: `.jsonl` or `.tsv` (either may end in `.gz`), or `.parquet`. The
rows are described in corpus_rows.py. Files are read in the order in which they are named, and those of a
folder in the order of their names. All files form one corpus, in which ids must be unique.

Rows that cannot be used are counted, and the first of them are named with file, line and fault. Then the
corpus is refused, or used without them if `skip_bad_rows` is set (bad_rows.py). A line that is longer than
MAX_LINE_BYTES is such a row, since a few hundred kilobytes of gzip can unpack to gigabytes. Lines are split
at `\\n` only, because other line separators of Unicode may occur inside a text.
"""

from __future__ import annotations

import codecs
import gzip
import logging
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from shlex import quote

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from retrieval_server.errors import BadRowError, UserError, UserErrors, check_all
from retrieval_server.folder.bad_rows import NAMED, BadRows
from retrieval_server.folder.corpus_rows import parse_jsonl_row, parse_tsv_row, passage_of
from retrieval_server.folder.manifest import MANIFEST, CorpusSection
from retrieval_server.folder.passages import Passage, PassageWriter, same_id_message

log = logging.getLogger(__name__)
MAX_LINE_BYTES = 16 * 2**20  # of one unpacked row; even whole Wikipedia articles are far shorter
_PARSERS: dict[str, Callable[[str], Passage]] = {".jsonl": parse_jsonl_row, ".tsv": parse_tsv_row}
_SUFFIXES = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz", ".parquet")
_SUFFIX_LIST = ", ".join(_SUFFIXES)
_COLUMNS = ("id", "contents", "title", "text", "url")
_PARQUET_BATCH_ROWS = 1024  # rows of a parquet file in memory
#: Byte-order mark -> encoding. That of UTF-32 begins with that of UTF-16.
_WIDE_ENCODINGS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def corpus_files(corpus: Path | Sequence[Path]) -> list[Path]:
    """Return the files of a corpus in reading order.

    Raises UserError for a file that is missing, unsuitable or given twice.
    """
    files: list[Path] = []
    for path in [corpus] if isinstance(corpus, Path) else corpus:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and _is_corpus_file(p))
            if not inside and (path / MANIFEST).is_file():
                raise UserError(f"{path} is an index: give the corpus that it was built from.")
            if not inside:
                raise UserError(
                    f"{path}: no file in this folder ends in one of {_SUFFIX_LIST}. Give "
                    "--corpus the folder that holds the corpus, or its files."
                )
            files += inside
        elif not path.is_file():
            raise UserError(f"{path}: no such file. Give the corpus with --corpus FILE.")
        elif not _is_corpus_file(path):
            raise UserError(f"{path}: the name must end in one of {_SUFFIX_LIST}, and not begin with a dot.")
        else:
            files.append(path)
    first_names: dict[Path, Path] = {}
    for file in files:
        if (first := first_names.setdefault(file.resolve(), file)) is not file:
            raise UserError(f"{first} is given twice. Leave one out.")
    return files


def _is_corpus_file(path: Path) -> bool:
    """Return whether the name is that of a corpus file. Hidden files, which editors leave, are none."""
    return path.name.lower().endswith(_SUFFIXES) and not path.name.startswith(".")


class CorpusReader:
    """Iterates over the corpus as `(position, Passage)`.

    A position is the number of a line or row, counted from 1 over all files; `locate` describes it in words.
    Malformed rows are left out and counted in `bad`. Unless `skip_bad_rows` is set, the iteration then ends
    with a UserError that names the first of them. Creating it raises UserError for a missing or unsuitable
    file, and the iteration for one that is broken, and OSError for one that may not be read.
    """

    def __init__(self, corpus: Path | Sequence[Path], *, skip_bad_rows: bool = False, progress: bool = True):
        self.files = corpus_files(corpus)
        self.skip_bad_rows = skip_bad_rows
        self.progress = progress
        self.bad = BadRows()
        #: For each file that has been opened, the number of rows before it.
        self._starts: list[int] = []

    @property
    def skipped(self) -> int:
        """The number of malformed rows that were left out."""
        return self.bad.count

    @property
    def source(self) -> str:
        """The name of the corpus, for people. Bytes of a file's name that are not UTF-8 are replaced."""
        names = [path.name.encode(errors="surrogateescape").decode(errors="replace") for path in self.files]
        return names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]} ({len(names)} files)"

    def locate(self, position: int) -> str:
        """Return `FILE, line N` for a position that has been read."""
        file = bisect_right(self._starts, position - 1) - 1
        return _location(self.files[file], position - self._starts[file])

    def __iter__(self) -> Iterator[tuple[int, Passage]]:
        """Yield the usable rows. Another iteration starts from the beginning."""
        self._starts, self.bad = [], BadRows()
        position = 0
        # Progress is counted in bytes on disk, because the number of rows is unknown.
        sizes = [path.stat().st_size for path in self.files]
        with tqdm(
            total=sum(sizes), unit="B", unit_scale=True, desc="reading corpus", disable=not self.progress
        ) as bar:
            for index, path in enumerate(self.files):
                self._starts.append(position)
                for row in _rows(path, bar.update):
                    position += 1
                    if isinstance(row, BadRowError):
                        self._add_bad(position, str(row))
                    elif row is not None:
                        yield position, row
                bar.update(sum(sizes[: index + 1]) - bar.n)
        if self.bad.count > NAMED:
            log.warning("%d bad rows in all", self.bad.count)
        if self.bad.count and not self.skip_bad_rows:
            raise UserError(self.bad.refusal())

    def _add_bad(self, position: int, fault: str) -> None:
        """Count a malformed row, and log it if it is one of the first."""
        self.bad.add(self.locate(position), fault)
        if self.bad.count <= NAMED:  # now, since the end of a large corpus may be minutes away
            log.warning("bad row: %s: %s", self.locate(position), fault)


def check_first_rows(corpus: Path, *, skip_bad_rows: bool = False, max_rows: int = 1000) -> None:
    """Raise UserError if a file of the corpus cannot be read, or two of its first rows have the same id.

    Malformed rows among the first `max_rows` of a file are refused too, unless `skip_bad_rows` is set.
    """
    check_all(*(partial(_check_file, path, skip_bad_rows, max_rows) for path in corpus_files(corpus)))


def refuse_empty(corpus: Path | Sequence[Path]) -> None:
    """Raise UserError if a corpus has no row at all; reads up to its first one."""
    reader = CorpusReader(corpus)
    if reader.files and all(row is None for path in reader.files for row in _rows(path)):
        raise _no_passage(reader)


def _no_passage(reader: CorpusReader) -> UserError:
    """Return the error about a corpus without a usable passage."""
    skipped = f" ({reader.skipped} malformed rows were skipped)" if reader.skipped else ""
    return UserError(f"{reader.source}: no passage in it{skipped}. An index needs at least one.")


def _check_file(path: Path, skip_bad_rows: bool, max_rows: int) -> None:
    """Check one file as `check_first_rows` does."""
    bad = BadRows()
    faults: list[UserError] = []
    first_rows: dict[str, int] = {}  # id -> number of the row that has it
    for number, row in enumerate(islice(_rows(path), max_rows), start=1):
        if isinstance(row, BadRowError):
            bad.add(_location(path, number), row)
        elif row and (first := first_rows.setdefault(row.id, number)) != number and not faults:
            text = same_id_message(_location(path, first), _location(path, number), row.id)
            faults.append(UserError(text))
    if bad.count and not skip_bad_rows:
        faults.append(UserError(bad.refusal()))
    if faults:
        raise UserErrors(faults)


def _location(path: Path, number: int) -> str:
    return f"{path}, {'row' if _is_parquet(path) else 'line'} {number}"


def _is_parquet(path: Path) -> bool:
    return path.name.lower().endswith(".parquet")


def _rows(
    path: Path, on_read: Callable[[int], object] = lambda size: None
) -> Iterator[Passage | BadRowError | None]:
    """Yield the passage or the fault of each row of a file; None for a blank line.

    `on_read` is called with the number of bytes on disk that were read since its last call. Raises UserError
    for a broken file, and OSError for one that may not be read.
    """
    return _parquet_rows(path, on_read) if _is_parquet(path) else _line_rows(path, on_read)


def _line_rows(path: Path, on_read: Callable[[int], object]) -> Iterator[Passage | BadRowError | None]:
    """Yield the passage or the fault of each line; None for a blank line.

    Raises UserError for a broken gzip file, and for a text in UTF-16 or UTF-32.
    """
    name = path.name.lower()
    parse = next(parse for suffix, parse in _PARSERS.items() if name.removesuffix(".gz").endswith(suffix))
    with path.open("rb") as raw:
        stream = gzip.open(raw) if name.endswith(".gz") else raw
        reported = 0  # bytes on disk
        try:
            _refuse_wide_encoding(path, stream.peek(4)[:4])
            for number, line in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES + 1), b"")):
                if number % 1000 == 0:
                    on_read(raw.tell() - reported)
                    reported = raw.tell()
                if len(line) > MAX_LINE_BYTES:
                    yield BadRowError(f"longer than {MAX_LINE_BYTES} bytes")
                    while line and not line.endswith(b"\n"):  # skip the rest of the row
                        line = stream.readline(MAX_LINE_BYTES)
                    continue
                yield _parse_line(line, "utf-8-sig" if number == 0 else "utf-8", parse)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{path}: broken gzip file ({error}). Fetch it again.") from error


def _refuse_wide_encoding(path: Path, begin: bytes) -> None:
    """Raise UserError, with the command that converts the file, if it begins like UTF-16 or UTF-32.

    Spreadsheets write such files. The rule is that of rag_r1/data/files/row_files.py, which this package must
    not import.
    """
    encoding = next((name for mark, name in _WIDE_ENCODINGS.items() if begin.startswith(mark)), None)
    # Without a byte-order mark, one of the two bytes of an ASCII character is null.
    if encoding is None and len(begin) > 1 and (begin[0] == 0) != (begin[1] == 0):
        encoding = "UTF-16BE" if begin[0] == 0 else "UTF-16LE"
    if encoding is not None:
        read = "zcat" if path.name.lower().endswith(".gz") else "cat"
        command = f"{read} {quote(str(path))} | iconv -f {encoding} -t UTF-8 > NEW"
        raise UserError(f"{path} is not UTF-8 but {encoding}. Convert it (`{command}`), and give NEW.")


def _parse_line(line: bytes, encoding: str, parse: Callable[[str], Passage]) -> Passage | BadRowError | None:
    """Return the passage or the fault of a line; None for a blank line."""
    try:
        text = line.decode(encoding).rstrip("\r\n")
        return parse(text) if text.strip() else None
    except UnicodeDecodeError as error:
        return BadRowError(f"not UTF-8 ({error.reason} at byte {error.start})")
    except BadRowError as fault:
        return fault


def _parquet_rows(path: Path, on_read: Callable[[int], object]) -> Iterator[Passage | BadRowError]:
    """Yield the passage or the fault of each row.

    About a thousand rows and the open pages of the columns are in memory at a time. Raises UserError for a
    file that is not parquet, or has values that cannot be converted.
    """
    try:
        with pq.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
            columns = [name for name in _COLUMNS if name in file.schema_arrow.names]
            bytes_per_row = path.stat().st_size / max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(_PARQUET_BATCH_ROWS, columns=columns, use_threads=False):
                for row in batch.to_pylist():
                    try:
                        yield passage_of(row)
                    except BadRowError as fault:
                        yield fault
                on_read(int(bytes_per_row * batch.num_rows))
    except (OSError, pa.ArrowException, ValueError, OverflowError) as error:
        # The last two come from a text that is not UTF-8, and from a time that Python cannot represent.
        raise UserError(f"{path}: not a readable parquet file ({error}). Fetch it again.") from error


def write_passages(reader: CorpusReader, path: Path) -> tuple[CorpusSection, int]:
    """Write the passages of the corpus to `path`. Returns the manifest's section and the number of passages.

    Raises UserError for an empty corpus, for broken files, for duplicate ids and, unless the reader skips
    them, for malformed rows, and OSError. The file is removed then.
    """
    try:
        with PassageWriter(path) as writer:
            for position, passage in reader:
                writer.add(passage, position)
        if writer.count == 0:
            raise _no_passage(reader)
        writer.refuse_duplicate_ids(reader.locate)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    section = CorpusSection(source=reader.source, sha256=writer.sha256, skipped_rows=reader.skipped)
    return section, writer.count
