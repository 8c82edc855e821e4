"""Encodes the passages of a dense index in parts, by several processes or machines.

A *part* is a range of rows that one run encodes. (A *shard*, in contrast, is a slice of a finished index that
is served on a separate machine.) Three steps share a folder, or use copies of it that are combined for the
last step:

- `prepare_corpus` writes the text, `passages.arrow`, and its description, `corpus.json`.
- `encode_part` writes the vectors of one part, `part-00002-of-00010.f32` (`.f16` or `.i8` for the rows of a
  preset), and beside them a `.json` file with their corpus and encoder. If it is interrupted, it resumes
  after its last complete block.
- `check_parts` checks that no part is missing, that all parts are complete, and that all have this corpus,
  the same encoder and the same type. Then builder.py builds the index from them.

Rows are divided at the borders of blocks, so that the bytes of all parts together equal those of a single
part.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import NamedTuple, TypeVar

from tqdm import tqdm

from retrieval_server.encode import vector_files
from retrieval_server.encode.encoder import Encoder
from retrieval_server.encode.vector_files import encode_rows
from retrieval_server.errors import UserError
from retrieval_server.folder.atomic import write_json
from retrieval_server.folder.corpus import CorpusReader, write_passages
from retrieval_server.folder.locks import exclusive_lock, named_lock
from retrieval_server.folder.manifest import PASSAGES, CorpusSection, EncoderSection, Stored, sha256_of_file
from retrieval_server.folder.passages import PassageStore
from retrieval_server.folder.row_layout import SUFFIXES, RowType
from retrieval_server.json_limits import json_file_bytes

CORPUS = "corpus.json"
_RECORD_NAME = re.compile(r"part-(\d{5})-of-(\d{5})\.json")


class CorpusRecord(Stored):
    """The contents of `corpus.json`, which describes the `passages.arrow` beside it."""

    corpus: CorpusSection
    #: The number of passages.
    count: int


class PartRecord(Stored):
    """The description of a part's vectors, which is stored beside them."""

    corpus_sha256: str
    encoder: EncoderSection
    #: The first row of the part, and the row after its last one.
    start: int
    stop: int
    #: The type in which the vectors are stored.
    rows: RowType = "float32"
    #: The hash of the file of vectors; None until it is complete.
    sha256: str | None = None


@dataclass(frozen=True)
class EncodingPart:
    """One part of the rows, written as I/N. Raises UserError for numbers out of range."""

    #: The number of this part, from 1, and the number of parts.
    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of <= 99999:
            raise UserError(f"--part {self}: give I/N with I from 1 to N, and N at most 99999.")

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def parse(cls, text: str) -> EncodingPart:
        """Return the part that is written as `I/N`. Raises UserError for another text."""
        if not re.fullmatch(r"[0-9]{1,5}/[0-9]{1,5}", text):
            raise UserError(f"--part {text}: not of the form I/N, 2/10 for the second of ten.")
        return cls(*map(int, text.split("/")))

    def row_range(self, count: int) -> tuple[int, int]:
        """Return the first and the last row (excluded) of this part of `count` rows. A part can be empty."""
        blocks = math.ceil(count / vector_files.BLOCK)
        first, last = (blocks * i // self.of * vector_files.BLOCK for i in (self.number - 1, self.number))
        return min(first, count), min(last, count)

    def vectors(self, folder: Path, kind: RowType = "float32") -> Path:
        """Return the file of the part's vectors, which are stored as rows of the type `kind`."""
        return self.record(folder).with_suffix(SUFFIXES[kind])

    def record(self, folder: Path) -> Path:
        """Return the file of the part's `PartRecord`."""
        return folder / f"part-{self.number:05d}-of-{self.of:05d}.json"

    def lock(self, folder: Path) -> Path:
        """Return the file that is locked while the part is encoded."""
        return self.record(folder).with_suffix(".lock")


class EncodedParts(NamedTuple):
    """The vectors of all parts."""

    encoder: EncoderSection
    #: The files in the order of their rows.
    files: list[Path]
    #: The type of the rows.
    kind: RowType


Record = TypeVar("Record", bound=Stored)


def prepare_corpus(reader: CorpusReader, folder: Path) -> CorpusRecord:
    """Run the first step: write the passages and their record, which is returned.

    Raises UserError for a bad corpus, or if the folder already has a corpus, and OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder, f"{folder}: another process writes its corpus. Wait for it."):
        refuse_prepared(folder)  # under the lock, or a process that has just ended could be overlooked
        (folder / PASSAGES).unlink(missing_ok=True)  # a merged index may be linked to it
        corpus, count = write_passages(reader, folder / PASSAGES)
        record = CorpusRecord(corpus=corpus, count=count)
        _write_record(folder / CORPUS, record)
    return record


def refuse_prepared(folder: Path) -> None:
    """Raise UserError if the folder already has a corpus."""
    if (folder / CORPUS).exists():
        raise UserError(f"{folder / CORPUS} exists: the folder has its corpus. Choose another --parts.")


def open_corpus(folder: Path) -> tuple[CorpusRecord, PassageStore]:
    """Return the record and the passages of `prepare_corpus`. Raises UserError if they are incomplete."""
    if not (folder / CORPUS).is_file():
        raise UserError(f"{folder}: no {CORPUS}. Use: rag-r1 index build passages --corpus PATH --parts DIR")
    record = _read_record(folder / CORPUS, CorpusRecord)
    store = PassageStore(folder / PASSAGES)
    if len(store) != record.count:
        raise UserError(
            f"{folder / PASSAGES}: {len(store)} passages, but {CORPUS} says {record.count}. Copy both again."
        )
    return record, store


def encode_part(
    folder: Path,
    part: EncodingPart,
    encoder: Encoder,
    *,
    kind: RowType = "float32",
    batch_size: int = 64,
    overwrite: bool = False,
    progress: bool = True,
) -> PartRecord:
    """Run the second step: encode one part. An interrupted part is resumed, and a finished one is kept.

    `kind` is the type in which vectors are stored. Returns the record of the finished part. Raises UserError
    if the part has vectors of another type, encoder or corpus, unless `overwrite` is set, or if another
    process is encoding it.
    """
    corpus, store = open_corpus(folder)
    start, stop = part.row_range(corpus.count)
    expected = PartRecord(
        corpus_sha256=corpus.corpus.sha256, encoder=encoder.section, start=start, stop=stop, rows=kind
    )
    # There is one lock for all types, since --overwrite removes the files of the other types.
    busy = f"part {part}: another process is encoding it in {folder}. Wait for it."
    with named_lock(part.lock(folder), busy):
        if finished := _begin_part(folder, part, expected, overwrite):
            return finished
        path = part.vectors(folder, kind)
        encode_rows(
            store,
            encoder,
            path,
            kind=kind,
            start=start,
            stop=stop,
            batch_size=batch_size,
            progress=progress,
            label=f"encoding part {part}",
        )
        finished = expected.model_copy(update={"sha256": sha256_of_file(path)})
        _write_record(part.record(folder), finished)
    return finished


def _begin_part(folder: Path, part: EncodingPart, expected: PartRecord, overwrite: bool) -> PartRecord | None:
    """Return the record of a finished part, and None if the part must be encoded or resumed.

    For a new part, and with `overwrite`, old files are removed and the `expected` record is written. Raises
    UserError if the part has vectors of another type, encoder or corpus.
    """
    if part.record(folder).exists() and not overwrite:
        record = _read_record(part.record(folder), PartRecord)
        if difference := _difference(record, expected):
            raise UserError(f"part {part}: vectors of another {difference}. Start over with --overwrite.")
        return record if record.sha256 is not None else None
    # The record goes first: after a kill it would otherwise call a part finished whose vectors are removed.
    part.record(folder).unlink(missing_ok=True)
    for kind in SUFFIXES:
        part.vectors(folder, kind).unlink(missing_ok=True)
    _write_record(part.record(folder), expected)
    return None


def check_parts(folder: Path, *, progress: bool = True) -> EncodedParts:
    """Run the third step: check all parts, and compare every file with its hash.

    Raises UserError, which names a part that is missing, unfinished, damaged or has another origin.
    """
    corpus, _ = open_corpus(folder)
    command = f"rag-r1 index build encode --parts {quote(str(folder))} --part"

    def refusal(part: EncodingPart, problem: str, flag: str = "") -> UserError:
        return UserError(f"part {part} {problem}. Encode it: {command} {part}{flag} --encoder NAME")

    present = _find_parts(folder, command)
    records: list[PartRecord] = []
    files = []
    parts = [EncodingPart(number, present[0].of) for number in range(1, present[0].of + 1)]
    for part in tqdm(parts, desc="checking parts", unit="part", disable=not progress):
        if part not in present:
            raise refusal(part, "is missing")
        record = _read_record(part.record(folder), PartRecord)
        if record.sha256 is None:
            raise refusal(part, "is not finished")
        start, stop = part.row_range(corpus.count)
        first = records[0] if records else record
        expected = first.model_copy(
            update={"corpus_sha256": corpus.corpus.sha256, "start": start, "stop": stop}
        )
        if difference := _difference(record, expected):
            raise refusal(part, f"has vectors of another {difference}", " --overwrite")
        path = part.vectors(folder, record.rows)
        if not path.is_file() or sha256_of_file(path) != record.sha256:
            raise refusal(part, f"is damaged: {path} is absent, or its hash differs", " --overwrite")
        records.append(record)
        files.append(path)
    return EncodedParts(records[0].encoder, files, records[0].rows)


def _find_parts(folder: Path, command: str) -> list[EncodingPart]:
    """Return the parts in the folder. Raises UserError if there are none, or of several divisions."""
    matches = filter(None, (_RECORD_NAME.fullmatch(path.name) for path in sorted(folder.iterdir())))
    present = [EncodingPart(*map(int, match.groups())) for match in matches]
    if not present:
        raise UserError(f"{folder}: no part in this folder. Make them with: {command} 1/N --encoder NAME")
    divisions = sorted({part.of for part in present})
    if len(divisions) > 1:
        example = ", ".join(str(next(part for part in present if part.of == of)) for of in divisions)
        raise UserError(f"{folder}: parts of different divisions ({example}). Remove all but one division.")
    return present


def _difference(record: PartRecord, expected: PartRecord) -> str | None:
    """Return the difference between two parts with both values, or None. Names of encoders are ignored."""
    if record.corpus_sha256 != expected.corpus_sha256:
        return f"corpus (sha256 {record.corpus_sha256} instead of {expected.corpus_sha256})"
    if (record.start, record.stop) != (expected.start, expected.stop):
        return f"range (rows {record.start}-{record.stop} instead of {expected.start}-{expected.stop})"
    if record.rows != expected.rows:
        return f"type ({record.rows} instead of {expected.rows})"
    encoder, expected_encoder = (part.encoder.model_dump(exclude={"name"}) for part in (record, expected))
    for key, value in encoder.items():
        if value != expected_encoder[key]:
            return f"encoder ({key} {value!r} instead of {expected_encoder[key]!r})"
    return None


def _write_record(path: Path, record: Stored) -> None:
    write_json(path, record.model_dump(exclude_none=True))


def _read_record(path: Path, kind: type[Record]) -> Record:
    """Return the record in a file. Raises UserError if it cannot be read."""
    try:
        return kind.model_validate_json(json_file_bytes(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable record ({error}). Copy it again or make it again.") from None
