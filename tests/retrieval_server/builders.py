"""A corpus of 20 passages, and indexes of this and other corpora."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from retrieval_server.encode.encoder import Encoder
from retrieval_server.folder.corpus import CorpusReader
from retrieval_server.folder.manifest import MANIFEST, sha256_of_file
from retrieval_server.indexing.builder import build_index
from retrieval_server.indexing.options import BuildOptions
from retrieval_server.indexing.parts import EncodingPart, encode_part, prepare_corpus

TOWNS = "Ulm Trier Kassel Lübeck Bremen Passau Worms Jena Celle Halle".split()


RIVERS = "Donau Mosel Fulda Trave Weser Inn Rhein Saale Aller Elster".split()


PASSAGES = [
    {"id": f"town-{i}", "contents": f'"{town}"\n{town} is a town in the valley of the river {river}.'}
    for i, (town, river) in enumerate(zip(TOWNS, RIVERS, strict=True))
] + [
    {
        "id": f"river-{i}",
        "contents": f'"{river}"\nThe {river} carries barges with timber; it is {i + 3} miles wide.',
    }
    for i, river in enumerate(RIVERS)
]


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def build_options(corpus: Path, out: Path, backend: str = "bm25", **more: object) -> BuildOptions:
    """Of a build without a progress bar; ``more`` replaces what is set here."""
    return BuildOptions(
        **{"corpus": corpus, "out": out, "backend": backend, "device": "cpu", "progress": False, **more}
    )


def dense_options(corpus: Path, encoder: Path, out: Path, **more: object) -> BuildOptions:
    """Those of a dense index that is encoded on the processor; ``more`` replaces them."""
    return build_options(corpus, out, "dense", **{"encoder": str(encoder), **more})


def build(corpus: Path, out: Path, backend: str = "bm25", **more: object) -> Path:
    """Builds an index; returns its folder."""
    build_index(build_options(corpus, out, backend, **more))
    return out


def parts_of(
    corpus: Path, folder: Path, encoder: Encoder, order: Sequence[int] = (1,), **more: object
) -> Path:
    """A folder with the passages of a corpus, encoded in as many parts as ``order`` names, one by one."""
    prepare_corpus(CorpusReader(corpus, progress=False), folder)
    for number in order:
        encode_part(folder, EncodingPart(number, len(order)), encoder, progress=False, **more)
    return folder


def shelf_of(folder: Path, **options: dict[str, object]) -> Path:
    """Indexes in one folder, by name with the options of each: the same ids, texts signed with the name."""
    for name, more in options.items():
        rows = [{"id": row["id"], "contents": f"{row['contents']} ({name})"} for row in PASSAGES]
        build(write_jsonl(folder / f"{name}.jsonl", rows), folder / name, **more)
    return folder


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    """Applies ``change`` to what the file holds."""
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file in a folder, by its path in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of_file(path) for path in files}


def contents_without_times(folder: Path) -> dict[str, object]:
    """The files of a dense index; of the manifest what does not depend on the clock."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for row in manifest["dense"].get("recall", {}).get("rows", ()):
        row["ms"] = 0
    return {**contents(folder), MANIFEST: manifest}
