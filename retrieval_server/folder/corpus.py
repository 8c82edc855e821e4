"""Reads a corpus row by row from one file, several, or a folder. No file is in memory as a whole.

The file's name gives the format: `.jsonl` and `.tsv` (each also with `.gz`) and `.parquet`; what a
row is, see corpus_rows.py. The files are read in the order given, those of a folder in the order of their
names, and together they are one corpus: an id may occur in only one of them.

Rows that cannot be used are counted, and the first of them named, with file, line and fault; then the corpus
is refused, or with `skip_bad_rows` used without them (bad_rows.py). A line beyond MAX_LINE_BYTES is such a
row: a few hundred kilobytes of gzip can unpack to gigabytes. Lines are split at `\\n` only, since Unicode's
other line separators may occur inside a text.
"""

from __future__ import annotations

import gzip
import logging
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from retrieval_server.errors import BadRowError, UserError, check_all
from retrieval_server.folder.bad_rows import NAMED, BadRows
from retrieval_server.folder.corpus_rows import parse_jsonl_row, parse_tsv_row, passage_of
from retrieval_server.folder.manifest import MANIFEST, CorpusSection
from retrieval_server.folder.passages import Passage, PassageWriter, same_id_message

log = logging.getLogger(__name__)
MAX_LINE_BYTES = 16 * 2**20  # of one row, unpacked; a whole article of Wikipedia stays far below it
_PARSERS: dict[str, Callable[[str], Passage]] = {".jsonl": parse_jsonl_row, ".tsv": parse_tsv_row}
_SUFFIXES = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz", ".parquet")
_COLUMNS = ("id", "contents", "title", "text", "url")
_PARQUET_BATCH_ROWS = 1024  # rows of a parquet file in memory


def corpus_files(corpus: Path | Sequence[Path]) -> list[Path]:
    """The files of a corpus, in reading order. Raises UserError if one is missing or of an unknown format."""
    files: list[Path] = []
    for path in [corpus] if isinstance(corpus, Path) else corpus:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and _is_corpus_file(p))
            if not inside and (path / MANIFEST).is_file():
                raise UserError(f"{path} is an index: give the corpus that it was built from.")
            if not inside:
                raise UserError(
                    f"{path}: no file in this folder ends in one of {', '.join(_SUFFIXES)}. Give "
                    "--corpus the folder that holds the corpus, or its files."
                )
            files += inside
        elif not _is_corpus_file(path):
            raise UserError(f"{path}: the name must end in one of {', '.join(_SUFFIXES)}.")
        elif not path.is_file():
            raise UserError(f"{path}: no such file. Give the corpus with --corpus FILE.")
        else:
            files.append(path)
    return files


def _is_corpus_file(path: Path) -> bool:
    return path.name.lower().endswith(_SUFFIXES) and not path.name.startswith(".")


class CorpusReader:
    """Iterates over `(position, Passage)`; malformed rows are left out and counted in `bad`. Unless they
    are to be skipped, the iteration ends with a UserError that names the first of them.

    A position is the number of a line or row, from 1, over all files; `locate` puts it into words.
    """

    def __init__(self, corpus: Path | Sequence[Path], *, skip_bad_rows: bool = False, progress: bool = True):
        self.files = corpus_files(corpus)
        self.skip_bad_rows = skip_bad_rows
        self.progress = progress
        self.bad = BadRows()
        self._starts: list[int] = []  # for each file begun, the number of rows before it

    @property
    def skipped(self) -> int:
        """The number of malformed rows that were left out."""
        return self.bad.count

    @property
    def source(self) -> str:
        """The corpus's name, for people."""
        names = [path.name for path in self.files]
        return names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]} ({len(names)} files)"

    def locate(self, position: int) -> str:
        """`FILE, line N` of a position that has been read."""
        file = bisect_right(self._starts, position - 1) - 1
        return _location(self.files[file], position - self._starts[file])

    def __iter__(self) -> Iterator[tuple[int, Passage]]:
        """Yields the usable rows; a second iteration begins anew."""
        self._starts, self.bad = [], BadRows()
        position = 0
        # Progress is counted in bytes on disk: their number is known, that of the rows is not.
        sizes = [path.stat().st_size for path in self.files]
        with tqdm(
            total=sum(sizes), unit="B", unit_scale=True, desc="reading corpus", disable=not self.progress
        ) as bar:
            for number, path in enumerate(self.files):
                self._starts.append(position)
                for row in _rows(path, bar):
                    position += 1
                    if isinstance(row, BadRowError):
                        self._add_bad(position, str(row))
                    elif row is not None:
                        yield position, row
                bar.update(sum(sizes[: number + 1]) - bar.n)
        if self.bad.count > NAMED:
            log.warning("%d bad rows in all", self.bad.count)
        if self.bad.count and not self.skip_bad_rows:
            raise UserError(self.bad.refusal())

    def _add_bad(self, position: int, fault: str) -> None:
        """Count a malformed row, and log the first ones."""
        self.bad.add(self.locate(position), fault)
        if self.bad.count <= NAMED:  # at once: the end of a large corpus may be minutes away
            log.warning("bad row: %s: %s", self.locate(position), fault)


def check_first_rows(corpus: Path, *, skip_bad_rows: bool = False, max_rows: int = 1000) -> None:
    """Raise UserError if a file of the corpus cannot be read, or if two of its first rows have the same id.

    Malformed ones among these rows are refused, too, unless they are to be skipped.
    """
    check_all(*(partial(_check_file, path, skip_bad_rows, max_rows) for path in corpus_files(corpus)))


def _check_file(path: Path, skip_bad_rows: bool, max_rows: int) -> None:
    """As `check_first_rows`, for one file."""
    bad = BadRows()
    first_rows: dict[str, int] = {}  # id -> the row that has it
    with tqdm(disable=True) as bar:
        for number, row in enumerate(islice(_rows(path, bar), max_rows), start=1):
            if isinstance(row, BadRowError):
                bad.add(_location(path, number), row)
            elif row is not None and (first := first_rows.setdefault(row.id, number)) != number:
                raise UserError(same_id_message(_location(path, first), _location(path, number), row.id))
    if bad.count and not skip_bad_rows:
        raise UserError(bad.refusal())


def _location(path: Path, number: int) -> str:
    return f"{path}, {'row' if _is_parquet(path) else 'line'} {number}"


def _is_parquet(path: Path) -> bool:
    return path.name.lower().endswith(".parquet")


def _rows(path: Path, bar: tqdm) -> Iterator[Passage | BadRowError | None]:
    """The passage or the fault of each row of a file; None for a blank line. Moves `bar` by bytes."""
    return _parquet_rows(path, bar) if _is_parquet(path) else _line_rows(path, bar)


def _line_rows(path: Path, bar: tqdm) -> Iterator[Passage | BadRowError | None]:
    """The passage or the fault of each line; None for a blank line. Raises UserError for broken gzip."""
    name = path.name.lower()
    parse = next(parse for suffix, parse in _PARSERS.items() if name.removesuffix(".gz").endswith(suffix))
    with path.open("rb") as raw:
        stream = gzip.open(raw) if name.endswith(".gz") else raw
        counted = 0  # bytes on disk
        try:
            for number, line in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES + 1), b"")):
                if number % 1000 == 0:
                    bar.update(raw.tell() - counted)
                    counted = raw.tell()
                if len(line) > MAX_LINE_BYTES:
                    yield BadRowError(f"longer than {MAX_LINE_BYTES} bytes")
                    while line and not line.endswith(b"\n"):  # to where the next row begins
                        line = stream.readline(MAX_LINE_BYTES)
                    continue
                try:
                    text = line.decode("utf-8-sig" if number == 0 else "utf-8").rstrip("\r\n")
                    yield parse(text) if text.strip() else None
                except UnicodeDecodeError as error:
                    yield BadRowError(f"not UTF-8 ({error.reason} at byte {error.start})")
                except BadRowError as fault:
                    yield fault
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{path}: broken gzip file ({error}). Fetch it again.") from error


def _parquet_rows(path: Path, bar: tqdm) -> Iterator[Passage | BadRowError]:
    """The passage or the fault of each row; a thousand rows and the columns' open pages are in memory.

    Raises UserError for a file that is not parquet.
    """
    try:
        with pq.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
            columns = [name for name in _COLUMNS if name in file.schema_arrow.names]
            share = path.stat().st_size / max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(_PARQUET_BATCH_ROWS, columns=columns, use_threads=False):
                for row in batch.to_pylist():
                    try:
                        yield passage_of(row)
                    except BadRowError as fault:
                        yield fault
                bar.update(int(share * batch.num_rows))
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a readable parquet file ({error}). Fetch it again.") from error


def write_passages(reader: CorpusReader, path: Path) -> tuple[CorpusSection, int]:
    """Write the corpus's text to `path`. Returns its section of the manifest and the number of passages.

    Raises UserError for an empty corpus, equal ids and, unless the reader skips them, malformed rows; then
    there is no such file.
    """
    try:
        with PassageWriter(path) as writer:
            for position, passage in reader:
                writer.add(passage, position)
        if writer.count == 0:
            skipped = f" ({reader.skipped} malformed rows were skipped)" if reader.skipped else ""
            raise UserError(f"{reader.source}: no passage in it{skipped}. An index needs at least one.")
        writer.refuse_duplicate_ids(reader.locate)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    section = CorpusSection(source=reader.source, sha256=writer.sha256, skipped_rows=reader.skipped)
    return section, writer.count
