"""`manifest.json`: the contents of an index folder, and the checks of its files.

The manifest is written last, and only then does the folder get its final name: a folder without one is not an
index. The manifest holds everything that changes an embedding (pooling, prefixes, normalisation, length, the
hash of the encoder's files), because an index searched with another encoder answers nonsense without any
error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
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
VERIFY_UP_TO = 2**30  # bytes; a larger folder's contents are hashed only on request


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CorpusSection(_Section):
    """The corpus: its file's name (for people), the hash of its ids and contents, the rows left out."""

    source: str
    sha256: str
    skipped_rows: int = 0


class EncoderSection(_Section):
    """What an embedding depends on. `sha256` is over the model's files; `max_length` is in tokens.

    `query_mode`: what clients put beside a query (see `IndexStatus`); None: its training did not say.
    `passage_dtype`: what the passages were encoded in, if not in floating point.
    """

    name: str
    sha256: str
    pooling: str
    query_prefix: str
    passage_prefix: str
    normalize: bool
    separator: str
    max_length: int
    dimension: int
    query_mode: str | None = None
    passage_dtype: Literal["int8"] | None = None


class SearchSection(_Section):
    """The settings of an approximate search, for servers that have none of their own."""

    nprobe: int | None = None
    ef_search: int | None = None


class RecallRow(SearchSection):
    """A setting, the share of exact search's results that it finds, and its milliseconds for each query."""

    recall: float
    ms: float


class RecallSection(_Section):
    """Recall@k of an approximate index, over `queries` queries from `source`."""

    k: int
    queries: int
    source: str
    rows: tuple[RecallRow, ...]


class RescoringSection(_Section):
    """Candidates of a compressed index are scored from `vectors.rows`, rows of the type `rows`.

    `candidates` of each query, unless the server has its own number; the layout: folder/row_layout.py.
    """

    rows: Literal["float16", "int8"]
    candidates: int = Field(ge=1)


class DenseSection(_Section):
    """A FAISS index and the encoder of its vectors. `search` and `recall` of approximate ones.

    `preset` is the name of the preset that chose the index; None: a factory string did.
    """

    encoder: EncoderSection
    metric: Literal["inner_product"]
    factory: str
    preset: str | None = None
    rescoring: RescoringSection | None = None
    search: SearchSection | None = None
    recall: RecallSection | None = None


class BM25Section(_Section):
    """A BM25 index: the text analysis and the two constants of the formula (Lucene's variant)."""

    stemmer: Literal["english", "none"]
    stopwords: Literal["english", "none"]
    k1: float
    b: float


class ShardSection(_Section):
    """Which shard of which index this is: rows from `first_row` on, of `whole_count` in `of` shards."""

    number: int
    of: int
    first_row: int
    whole_count: int
    whole_sha256: str


class HybridSection(_Section):
    """Other index folders of the same corpus, by paths from this one; reciprocal rank fusion's constants."""

    of: tuple[str, ...]
    k: int
    depth: int


class FileEntry(_Section):
    """Size and hash of one file of the folder."""

    bytes: int
    sha256: str


class Manifest(_Section):
    """The whole of `manifest.json`. The section named by `backend` is always there.

    A hybrid also has the dense section of the dense index that it searches, if there is one.
    """

    format_version: int
    backend: Literal["dense", "bm25", "lucene", "hybrid"]
    count: int
    corpus: CorpusSection
    dense: DenseSection | None = None
    bm25: BM25Section | None = None
    shard: ShardSection | None = None
    lucene: BM25Section | None = None
    hybrid: HybridSection | None = None
    files: dict[str, FileEntry]
    built_with: dict[str, str]

    @field_validator("files")
    @classmethod
    def _check_inside(cls, files: dict[str, FileEntry]) -> dict[str, FileEntry]:
        # The message that refuses a file shows its size and hash: it must not be one outside of the folder.
        for name in files:
            path = PurePosixPath(name)
            if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
                raise ValueError(f"{name[:100]!r} is not the path of a file in this folder")
        return files


def sha256_of_file(path: Path, on_read: Callable[[int], object] = lambda size: None) -> str:
    """The file's hash, in hexadecimal; `on_read` is called with the size of each block."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(2**20):
            digest.update(chunk)
            on_read(len(chunk))
    return digest.hexdigest()


def describe_files(folder: Path, progress: bool = False) -> dict[str, FileEntry]:
    """Size and hash of every file below the folder except the manifest, by relative path.

    `progress` shows a bar if there is more to read than VERIFY_UP_TO.
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
    write_json(folder / MANIFEST, manifest.model_dump(exclude_none=True))


def replaced_folder(folder: Path) -> Path:
    """The folder of an index while another one replaces it (publication.py)."""
    return folder.with_name(folder.name + ".replaced")


def read_manifest(folder: Path) -> Manifest:
    """The folder's manifest. Raises UserError if it is not a finished index of this format."""
    path = folder / MANIFEST
    rebuild = "Build one with: rag-r1 index build --corpus FILE --out DIR --backend bm25"
    if not folder.is_dir():
        if (replaced_folder(folder) / MANIFEST).is_file():
            move = f"mv {replaced_folder(folder)} {folder}"
            raise UserError(f"{folder}: a build that replaces this index has not ended. If none runs: {move}")
        raise UserError(f"{folder}: no such folder. {rebuild}")
    if not path.is_file():
        raise UserError(f"{folder}: no {MANIFEST}, so this is not a finished index. {rebuild}")
    try:
        data = read_json_file(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). Check its rights.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}). {rebuild}") from None
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
    """Raises UserError, with both values and the remedy, if they differ."""
    if in_manifest != actual:
        raise UserError(f"{label}: the manifest says {in_manifest!r}, found {actual!r}. {remedy}")


def check_files(folder: Path, manifest: Manifest, verify: bool | None = None) -> None:
    """Compare the folder's files with the manifest: sizes always, hashes if `verify`.

    `verify=None` hashes folders of up to 1 GiB: that takes seconds, and minutes for a whole Wikipedia.
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
