"""The manifest of an index folder, `manifest.json`, and the checks of the folder's files.

The manifest is written last, before the folder gets its final name, so a folder without a manifest is not an
index. It contains everything that changes an embedding (pooling, prefixes, normalisation, length, and the
hash of the encoder's files), because an index that is searched with another encoder returns nonsense without
any error.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from tqdm import tqdm

from retrieval_server.errors import REBUILD, UserError
from retrieval_server.folder.atomic import write_json
from retrieval_server.json_limits import read_json_file

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
PASSAGES = "passages.arrow"
FAISS_INDEX = "faiss.index"
ROWS = "vectors.rows"
BM25_FOLDER = "bm25"
LUCENE_FOLDER = "lucene"
VERIFY_UP_TO = 2**30  # bytes; the contents of a larger folder are hashed only on request


class Stored(BaseModel):
    """Base of what is stored as JSON, such as the manifest's sections: immutable, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CorpusSection(Stored):
    """The corpus from which an index was built."""

    #: The name of its file, for people.
    source: str
    #: The hash of all ids and contents.
    sha256: str
    #: The number of malformed rows that were left out.
    skipped_rows: int = 0


class EncoderSection(Stored):
    """The encoder and all settings on which an embedding depends."""

    name: str
    #: The hash of the model's files.
    sha256: str
    pooling: str
    query_prefix: str
    passage_prefix: str
    normalize: bool
    #: Joins the parts of a query that consists of several texts.
    separator: str
    #: In tokens.
    max_length: int
    dimension: int
    #: What clients add to a query (see `IndexStatus`); None if the training did not record it.
    query_mode: str | None = None
    #: The number format in which the passages were encoded; None for floating point.
    passage_dtype: Literal["int8"] | None = None


class SearchSection(Stored):
    """The default settings of an approximate search, which a server's options override."""

    nprobe: int | None = Field(None, ge=1)
    ef_search: int | None = Field(None, ge=1)


class RecallRow(SearchSection):
    """The measured recall and speed of one setting."""

    #: The share, 0 to 1, of the hits of exact search that are found.
    recall: float
    #: Milliseconds per query.
    ms: float


class RecallSection(Stored):
    """The recall@k of an approximate index at several settings."""

    k: int
    #: The number of queries.
    queries: int
    #: The origin of the queries in words.
    source: str
    rows: tuple[RecallRow, ...]


class RescoringSection(Stored):
    """How the candidates of a compressed index are scored from the file `vectors.rows`."""

    #: The type of the rows; folder/row_layout.py describes their layout.
    rows: Literal["float16", "int8"]
    #: The number of candidates of each query, unless the server's options set another one.
    candidates: int = Field(ge=1)


class DenseSection(Stored):
    """A FAISS index and the encoder of its vectors."""

    encoder: EncoderSection
    metric: Literal["inner_product"]
    #: FAISS's factory string.
    factory: str
    #: The name of the preset that chose the index; None if a factory string did.
    preset: str | None = None
    #: Only for a compressed index.
    rescoring: RescoringSection | None = None
    #: Only for approximate indexes, like `recall`.
    search: SearchSection | None = None
    recall: RecallSection | None = None

    @property
    def cells(self) -> int | None:
        """The number of cells of an IVF index; None if the factory string names none."""
        match = re.search(r"IVF(\d+)", self.factory)
        return int(match[1]) if match else None


class BM25Section(Stored):
    """The text analysis of a BM25 index, and the two constants of the formula (Lucene's variant)."""

    stemmer: Literal["english", "none"]
    stopwords: Literal["english", "none"]
    k1: float
    b: float


class ShardSection(Stored):
    """The place of a shard in the index that was split."""

    #: The number of this shard, from 0, and the number of shards.
    number: int
    of: int
    #: The row of the whole index that is the shard's row 0.
    first_row: int
    #: The number of passages of the whole index, and the hash of its corpus.
    whole_count: int
    whole_sha256: str


class HybridSection(Stored):
    """The indexes of one corpus that are searched together, and the constants of reciprocal rank fusion."""

    #: The folders of the indexes, relative to this one.
    of: tuple[str, ...]
    #: The number that is added to a rank; 0 or less could divide by zero.
    k: int = Field(ge=1)
    #: The number of passages that each index contributes.
    depth: int = Field(ge=1)


class FileEntry(Stored):
    """The size in bytes and the SHA-256 of one file of the folder."""

    bytes: int
    sha256: str


class Manifest(Stored):
    """The contents of `manifest.json`. The section named by `backend` always exists.

    A hybrid index also has the dense section of the dense index that it searches, if there is one.
    """

    format_version: int
    backend: Literal["dense", "bm25", "lucene", "hybrid"]
    #: The number of passages.
    count: int = Field(ge=1)
    corpus: CorpusSection
    dense: DenseSection | None = None
    bm25: BM25Section | None = None
    shard: ShardSection | None = None
    lucene: BM25Section | None = None
    hybrid: HybridSection | None = None
    #: By path relative to the folder; all files but the manifest itself.
    files: dict[str, FileEntry]
    #: The versions of the libraries, by name, for people.
    built_with: dict[str, str]

    @field_validator("files")
    @classmethod
    def _check_inside(cls, files: dict[str, FileEntry]) -> dict[str, FileEntry]:
        # Error messages show the size and hash of a file, so no file outside the folder may be named.
        for name in files:
            path = PurePosixPath(name)
            if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
                raise ValueError(f"{name[:100]!r} is not the path of a file in this folder")
        return files


def sha256_of_file(path: Path, on_read: Callable[[int], object] = lambda size: None) -> str:
    """Return the file's SHA-256 in hexadecimal. `on_read` is called with the size of each block."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(2**20):
            digest.update(chunk)
            on_read(len(chunk))
    return digest.hexdigest()


def describe_files(folder: Path, progress: bool = False) -> dict[str, FileEntry]:
    """Return size and hash of every file below the folder except the manifest, by relative path.

    `progress` shows a bar if more than VERIFY_UP_TO bytes are read.
    """
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    sizes = [p.stat().st_size for p in paths]
    quiet = not progress or sum(sizes) <= VERIFY_UP_TO
    with tqdm(total=sum(sizes), desc="hashing", unit="B", unit_scale=True, disable=quiet) as bar:
        return {
            p.relative_to(folder).as_posix(): FileEntry(bytes=size, sha256=sha256_of_file(p, bar.update))
            for p, size in zip(paths, sizes, strict=True)
        }


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest atomically, after all other files of the folder."""
    write_json(folder / MANIFEST, manifest.model_dump(exclude_none=True))


def replaced_folder(folder: Path) -> Path:
    """Return the name of an index's folder while another index replaces it (publication.py)."""
    return folder.with_name(folder.name + ".replaced")


def read_manifest(folder: Path) -> Manifest:
    """Return the folder's manifest. Raises UserError if the folder is not a finished index of this format."""
    path = folder / MANIFEST
    build_one = "Build one with: rag-r1 index build --corpus FILE --out DIR --backend bm25"
    try:
        is_folder = folder.is_dir()
        is_replaced = not is_folder and (replaced_folder(folder) / MANIFEST).is_file()
        is_finished = is_folder and path.is_file()
    except OSError as error:  # a folder that this user may not read, or a name that is too long
        raise UserError(f"{path}: cannot be read ({error.strerror}). Check its name and rights.") from None
    if not is_folder:
        if is_replaced:
            move = f"mv {quote(str(replaced_folder(folder)))} {quote(str(folder))}"
            raise UserError(f"{folder}: a build that replaces this index has not ended. If none runs: {move}")
        if folder.exists():
            raise UserError(f"{folder}: is a file. Give the folder of an index. {build_one}")
        raise UserError(f"{folder}: no such folder. {build_one}")
    if not is_finished:
        raise UserError(f"{folder}: no {MANIFEST}, so this is not a finished index. {build_one}")
    try:
        data = read_json_file(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). Check its rights.") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}). {build_one}") from None
    version = data.get("format_version") if isinstance(data, dict) else None
    if version != FORMAT_VERSION:
        raise UserError(f"{path}: format version {version}, this server reads {FORMAT_VERSION}. {REBUILD}")
    try:
        manifest = Manifest.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path}: {key}: {first['msg']}. {REBUILD}") from None
    if getattr(manifest, manifest.backend) is None:
        raise UserError(f"{path}: backend {manifest.backend!r} without its section. {REBUILD}")
    return manifest


def require_equal(label: str, in_manifest: object, actual: object, remedy: str) -> None:
    """Raise UserError, with both values and the remedy, if the values differ."""
    if in_manifest != actual:
        raise UserError(f"{label}: the manifest says {in_manifest!r}, found {actual!r}. {remedy}")


def check_files(folder: Path, manifest: Manifest, verify: bool | None = None) -> None:
    """Compare the folder's files with the manifest: their sizes always, and their hashes if `verify` is true.

    `verify=None` hashes folders of up to 1 GiB, which takes seconds; a whole Wikipedia would take minutes.
    Raises UserError for a file that is missing or differs.
    """
    remedy = "The folder was changed after its build; copy it again or build it again."
    if verify is None:
        verify = sum(entry.bytes for entry in manifest.files.values()) <= VERIFY_UP_TO
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path}: the manifest names this file, but it is missing. {remedy}")
        require_equal(f"{path}: size in bytes", entry.bytes, path.stat().st_size, remedy)
        if verify:
            require_equal(f"{path}: sha256", entry.sha256, sha256_of_file(path), remedy)
