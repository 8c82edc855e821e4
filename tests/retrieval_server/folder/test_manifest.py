"""An index whose parts do not fit is refused at start, with both values and the remedy."""

from __future__ import annotations

import re
import shutil

import faiss
import pytest

from retrieval_server.errors import UserError
from retrieval_server.folder.passages import Passage, PassageWriter
from retrieval_server.search.index_source import IndexSource

from ..builders import edit_json


@pytest.fixture
def copy(tmp_path):
    def copy(index):
        return shutil.copytree(index, tmp_path / index.name)

    return copy


def refuse(folder, *parts, **options):
    with pytest.raises(UserError) as caught:
        IndexSource.open(folder, **options)
    for part in parts:
        assert part in str(caught.value)


def test_an_unfinished_folder_is_refused(tmp_path, copy, bm25_index):
    refuse(tmp_path / "none", "no such folder", "rag-r1 index build")
    refuse(tmp_path / ("x" * 250), "manifest.json: cannot be read", "too long")  # with `.replaced`
    folder = copy(bm25_index)
    refuse(folder / "manifest.json", "is a file", "rag-r1 index build")
    (folder / "manifest.json").unlink()
    refuse(folder, "not a finished index", "rag-r1 index build")


@pytest.mark.parametrize(
    "text, reason", [("{", "not JSON"), ("[]", "format version None"), ("{}", "version None")]
)
def test_a_broken_manifest_is_refused(copy, bm25_index, text, reason):
    folder = copy(bm25_index)
    (folder / "manifest.json").write_text(text)
    refuse(folder, reason)


@pytest.mark.parametrize(
    "index, change, words",
    [
        ("bm25_index", lambda data: data["bm25"].update(k2=1), ["bm25.k2"]),
        ("bm25_index", lambda data: data.update(count="many"), ["count"]),
        ("bm25_index", lambda data: data.update(count=0), ["count: Input should be greater"]),
        ("dense_index", lambda data: data["dense"].update(search={"nprobe": 0}), ["dense.search.nprobe"]),
        ("bm25_index", lambda data: data.update(hybrid={"of": [], "k": 0, "depth": 1}), ["hybrid.k"]),
        ("bm25_index", lambda data: data.update(format_version=2), ["version 2", "reads 1"]),
        ("bm25_index", lambda data: data.update(backend="dense"), ["'dense' without its section"]),
        (
            "dense_index",
            lambda data: data["dense"]["encoder"].update(dimension=48),
            ["dimension: the manifest says 48, found 32"],
        ),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(copy, request, index, change, words):
    folder = copy(request.getfixturevalue(index))
    edit_json(folder / "manifest.json", change)
    refuse(folder, *words)


def test_a_missing_a_cut_and_an_altered_file_are_refused(copy, bm25_index):
    folder = copy(bm25_index)
    path = folder / "passages.arrow"
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    refuse(folder, "size in bytes", str(len(good)), str(len(good) - 1))
    path.write_bytes(good.replace(b"Trier", b"Fulda"))
    refuse(folder, "sha256", "copy it again or build it again")
    IndexSource.open(folder, verify=False)  # the size is right, and that is all that was asked for
    path.unlink()
    refuse(folder, "missing", "passages.arrow")


@pytest.mark.parametrize(
    "index, rows, count, words",
    [
        ("bm25_index", 1, 20, "the manifest says 20, found 1. Build the index again"),
        ("bm25_index", 7, 7, "the manifest says 7, found 20"),
        ("dense_index", 7, 7, "the manifest says 7, found 20"),
    ],
)
def test_a_corpus_or_search_index_of_another_length_is_refused_with_both_counts(
    copy, request, index, rows, count, words
):
    folder = copy(request.getfixturevalue(index))
    path = folder / "passages.arrow"
    with PassageWriter(path) as writer:
        for i in range(rows):
            writer.add(Passage(str(i), "x"), i)

    def change(data):
        data["files"]["passages.arrow"]["bytes"] = path.stat().st_size
        data["count"] = count

    edit_json(folder / "manifest.json", change)
    refuse(folder, words, verify=False)


def test_an_index_of_another_metric_is_refused(copy, dense_index):
    folder = copy(dense_index)
    index = faiss.IndexFlatL2(32)
    index.add(faiss.read_index(str(folder / "faiss.index")).reconstruct_n(0, 20))
    faiss.write_index(index, str(folder / "faiss.index"))
    refuse(folder, "metric", "inner_product", verify=False)


@pytest.mark.parametrize(
    "index, name, old, new, reason",
    [
        ("dense_index", "faiss.index", b"(?s).", b"x", "not a readable FAISS index"),
        ("bm25_index", "bm25/params.index.json", b"(?s).", b"x", "not a readable BM25 index"),
        ("bm25_index", "bm25/params.index.json", b'(?<="num_docs": )20', b"{}", "not a readable BM25 index"),
    ],
)
def test_files_that_are_not_an_index_are_refused(copy, request, index, name, old, new, reason):
    folder = copy(request.getfixturevalue(index))
    (folder / name).write_bytes(re.sub(old, new, (folder / name).read_bytes()))
    refuse(folder, reason, verify=False)


@pytest.mark.parametrize(
    "name", ["../secret", "bm25/../../secret", "/etc/hostname", "..", ".", "", "passages.arrow\0"]
)
def test_a_manifest_names_no_file_outside_its_folder(copy, bm25_index, name):
    folder = copy(bm25_index)
    (folder.parent / "secret").write_text("seven letters")
    edit_json(
        folder / "manifest.json", lambda data: data["files"].update({name: {"bytes": 1, "sha256": "0" * 64}})
    )
    with pytest.raises(UserError, match="not the path of a file in this folder") as caught:
        IndexSource.open(folder)
    message = str(caught.value).replace(str(folder), "")
    assert "13" not in message  # the size of the file that it named
