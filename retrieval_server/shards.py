"""A dense index built in parts, by several processes or on several machines.

Three steps share a folder, or copies of it that are brought together for the last step:

* ``prepare_corpus`` writes the text, ``passages.arrow``, and ``corpus.json``, which says what it is;
* ``encode_shard`` writes the vectors of one part of the rows, ``shard-00002-of-00010.f32``, and beside it a
  ``.json`` that says whose vectors these are. Killed, it goes on behind its last whole block;
* ``check_shards`` sees that the parts are whole, of this corpus, of one encoder and without gap; builder.py
  makes the index of them.

Rows are divided at the borders of blocks, so that n shards hold the bytes that a single one would hold.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from tqdm import tqdm

from retrieval_server import encoding
from retrieval_server.corpus import CorpusReader, write_passages
from retrieval_server.encoder import Encoder
from retrieval_server.encoding import encode_rows
from retrieval_server.errors import BuildError
from retrieval_server.manifest import PASSAGES, CorpusSection, EncoderSection, sha256_of_file
from retrieval_server.passages import PassageStore

CORPUS = "corpus.json"
_NAME = re.compile(r"shard-(\d{5})-of-(\d{5})\.json")


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CorpusRecord(_Record):
    """``corpus.json``: what ``passages.arrow`` beside it holds."""

    corpus: CorpusSection
    count: int


class ShardRecord(_Record):
    """What lies beside a shard's vectors: the rows ``start`` to ``stop`` (excluded), of what, by whom.

    ``sha256`` is that of the vectors' file; None until all of them are there.
    """

    corpus_sha256: str
    encoder: EncoderSection
    start: int
    stop: int
    sha256: str | None = None


@dataclass(frozen=True)
class Shard:
    """Part ``number`` (from 1) of ``of``."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of <= 99999:
            raise BuildError(f"--shard {self}: give I/N with I from 1 to N, and N at most 99999.")

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From ``I/N``. Raises BuildError."""
        if not re.fullmatch(r"[0-9]{1,5}/[0-9]{1,5}", text):
            raise BuildError(f"--shard {text}: not of the form I/N, 2/10 for the second of ten.")
        return cls(*map(int, text.split("/")))

    def rows(self, count: int) -> tuple[int, int]:
        """First row and last (excluded) of this part of ``count`` rows. A part of few rows can be empty."""
        blocks = -(-count // encoding.BLOCK)
        first, last = (blocks * i // self.of * encoding.BLOCK for i in (self.number - 1, self.number))
        return min(first, count), min(last, count)

    def vectors(self, folder: Path) -> Path:
        return folder / f"shard-{self.number:05d}-of-{self.of:05d}.f32"

    def record(self, folder: Path) -> Path:
        return self.vectors(folder).with_suffix(".json")


def prepare_corpus(reader: CorpusReader, folder: Path) -> CorpusRecord:
    """The first step. Raises CorpusError for a bad corpus, BuildError if the folder has one already."""
    if (folder / CORPUS).exists():
        raise BuildError(f"{folder / CORPUS} exists: this folder has its corpus. Choose another --shards.")
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder, f"{folder}: another process is writing the corpus of this folder."):
        corpus, count = write_passages(reader, folder / PASSAGES)
        record = CorpusRecord(corpus=corpus, count=count)
        _write(folder / CORPUS, record)
    return record


def open_corpus(folder: Path) -> tuple[CorpusRecord, PassageStore]:
    """What ``prepare_corpus`` made. Raises BuildError if it is not there or not whole."""
    if not (folder / CORPUS).is_file():
        raise BuildError(
            f"{folder}: no {CORPUS}. Begin with: build_index.py passages --corpus PATH --shards {folder}"
        )
    record = _read(folder / CORPUS, CorpusRecord)
    store = PassageStore(folder / PASSAGES)
    if len(store) != record.count:
        raise BuildError(
            f"{folder / PASSAGES}: {len(store)} passages, but {CORPUS} says {record.count}. Copy both again."
        )
    return record, store


def encode_shard(
    folder: Path,
    shard: Shard,
    encoder: Encoder,
    *,
    batch_size: int = 64,
    overwrite: bool = False,
    progress: bool = True,
) -> ShardRecord:
    """The second step, for one shard; goes on where a killed run stopped, and does nothing if all is there.

    Raises BuildError if the vectors that are there are of another encoder or corpus (``overwrite`` starts
    over), or if another process encodes this shard.
    """
    record, store = open_corpus(folder)
    start, stop = shard.rows(record.count)
    wanted = ShardRecord(corpus_sha256=record.corpus.sha256, encoder=encoder.section, start=start, stop=stop)
    path = shard.vectors(folder)
    path.touch()
    with _locked(path, f"shard {shard}: another process is encoding it in {folder}."):
        if shard.record(folder).exists() and not overwrite:
            there = _read(shard.record(folder), ShardRecord)
            if difference := _difference(there, wanted):
                raise BuildError(
                    f"shard {shard}: its vectors are of another {difference}. "
                    "Start it over with --overwrite, or choose another --shards."
                )
            if there.sha256 is not None:
                return there
        else:
            os.truncate(path, 0)
            _write(shard.record(folder), wanted)
        encode_rows(
            store,
            encoder,
            path,
            start=start,
            stop=stop,
            batch_size=batch_size,
            progress=progress,
            label=f"encoding shard {shard}",
        )
        finished = wanted.model_copy(update={"sha256": sha256_of_file(path)})
        _write(shard.record(folder), finished)
    return finished


def check_shards(folder: Path, *, progress: bool = True) -> tuple[EncoderSection, list[Path]]:
    """The encoder and the files of the vectors of all rows, in order; every byte is compared with its hash.

    Raises BuildError naming the shard that is missing, unfinished, damaged or does not belong.
    """
    record, _ = open_corpus(folder)
    found = [Shard(*map(int, m.groups())) for p in sorted(folder.iterdir()) if (m := _NAME.fullmatch(p.name))]
    again = f"build_index.py encode --shards {folder} --shard"
    if not found:
        raise BuildError(f"{folder}: no shard in this folder. Make them with: {again} 1/N --encoder NAME")
    divisions = sorted({shard.of for shard in found})
    if len(divisions) > 1:
        example = ", ".join(str(next(s for s in found if s.of == of)) for of in divisions)
        raise BuildError(f"{folder}: shards of different divisions ({example}). Remove those of one.")
    reference: ShardRecord | None = None
    files = []
    shards = [Shard(number, divisions[0]) for number in range(1, divisions[0] + 1)]
    for shard in tqdm(shards, desc="checking shards", unit="shard", disable=not progress):
        if shard not in found:
            raise BuildError(f"shard {shard} is missing in {folder}: {again} {shard} --encoder NAME")
        there = _read(shard.record(folder), ShardRecord)
        if there.sha256 is None:
            raise BuildError(f"shard {shard} is not finished. The same command goes on: {again} {shard} ...")
        start, stop = shard.rows(record.count)
        wanted = ShardRecord(
            corpus_sha256=record.corpus.sha256,
            encoder=reference.encoder if reference else there.encoder,
            start=start,
            stop=stop,
        )
        if difference := _difference(there, wanted):
            raise BuildError(
                f"shard {shard}: its vectors are of another {difference}. Encode it again: "
                f"{again} {shard} --overwrite --encoder NAME"
            )
        if not shard.vectors(folder).is_file() or sha256_of_file(shard.vectors(folder)) != there.sha256:
            raise BuildError(
                f"shard {shard}: {shard.vectors(folder)} is not the file that was encoded: its hash differs. "
                f"Copy it again, or encode it again: {again} {shard} --overwrite --encoder NAME"
            )
        reference = reference or there
        files.append(shard.vectors(folder))
    assert reference is not None
    return reference.encoder, files


def _difference(there: ShardRecord, wanted: ShardRecord) -> str | None:
    """What two shards differ in, with both values. An encoder is known by its hash, wherever it lies."""
    if there.corpus_sha256 != wanted.corpus_sha256:
        return f"corpus (sha256 {there.corpus_sha256} instead of {wanted.corpus_sha256})"
    if (there.start, there.stop) != (wanted.start, wanted.stop):
        return f"range (rows {there.start}-{there.stop} instead of {wanted.start}-{wanted.stop})"
    one, other = there.encoder.model_dump(exclude={"name"}), wanted.encoder.model_dump(exclude={"name"})
    return next(
        (f"encoder ({key} {one[key]!r} instead of {other[key]!r})" for key in one if one[key] != other[key]),
        None,
    )


@contextmanager
def _locked(path: Path, refusal: str) -> Iterator[None]:
    """Held by one process; the lock falls with it and leaves nothing behind."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BuildError(refusal) from None
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, record: BaseModel) -> None:
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as stream:
        json.dump(record.model_dump(exclude_none=True), stream, indent=2, ensure_ascii=False)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)


def _read(path: Path, kind):
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise BuildError(f"{path}: no readable record ({error}). Copy it again or make it again.") from None
