"""An index whose parts do not fit is refused at start, with both values and the remedy."""

from __future__ import annotations

import json
import shutil

import pytest

from retrieval_server.errors import IndexFolderError
from retrieval_server.folder.passages import Passage, PassageWriter
from retrieval_server.search.index_source import IndexSource


@pytest.fixture
def copy(tmp_path):
    def copy(index):
        return shutil.copytree(index, tmp_path / index.name)

    return copy


def edit_manifest(folder, change):
    data = json.loads((folder / "manifest.json").read_text())
    change(data)
    (folder / "manifest.json").write_text(json.dumps(data))


def refuse(folder, *parts, **options):
    with pytest.raises(IndexFolderError) as caught:
        IndexSource.open(folder, **options)
    for part in parts:
        assert part in str(caught.value)


def test_an_unfinished_folder_is_refused(tmp_path, copy, bm25_index):
    refuse(tmp_path / "none", "no such folder", "rag-r1 index build")
    folder = copy(bm25_index)
    (folder / "manifest.json").unlink()
    refuse(folder, "no finished index", "rag-r1 index build")


@pytest.mark.parametrize(
    "text, reason", [("{", "not JSON"), ("[]", "format version None"), ("{}", "version None")]
)
def test_a_broken_manifest_is_refused(copy, bm25_index, text, reason):
    folder = copy(bm25_index)
    (folder / "manifest.json").write_text(text)
    refuse(folder, reason)


def test_an_unknown_key_a_wrong_type_and_another_version_are_named(copy, bm25_index):
    folder = copy(bm25_index)
    edit_manifest(folder, lambda data: data["bm25"].update(k2=1))
    refuse(folder, "bm25.k2")
    edit_manifest(folder, lambda data: (data["bm25"].pop("k2"), data.update(count="many")))
    refuse(folder, "count")
    edit_manifest(folder, lambda data: data.update(format_version=2))
    refuse(folder, "version 2", "reads 1")


def test_a_backend_without_its_section_is_refused(copy, bm25_index):
    folder = copy(bm25_index)
    edit_manifest(folder, lambda data: data.update(backend="dense"))
    refuse(folder, "'dense' without its section")


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


def test_a_corpus_of_another_length_is_refused_with_both_counts(copy, bm25_index):
    folder = copy(bm25_index)
    path = folder / "passages.arrow"
    with PassageWriter(path) as writer:
        writer.add(Passage("1", "only one"), 1)
    edit_manifest(folder, lambda data: data["files"]["passages.arrow"].update(bytes=path.stat().st_size))
    refuse(folder, "20", "1", "Build the index again", verify=False)


@pytest.mark.parametrize("which", ["bm25_index", "dense_index"])
def test_a_search_index_of_another_length_is_refused_with_both_counts(copy, request, which, tmp_path):
    folder = copy(request.getfixturevalue(which))
    path = folder / "passages.arrow"
    with PassageWriter(path) as writer:
        for i in range(7):
            writer.add(Passage(str(i), "x"), i)
    edit_manifest(
        folder,
        lambda data: (
            data["files"]["passages.arrow"].update(bytes=path.stat().st_size),
            data.update(count=7),
        ),
    )
    refuse(folder, "7", "20", verify=False)


def test_an_encoder_of_another_dimension_is_refused_with_both(copy, dense_index):
    folder = copy(dense_index)
    edit_manifest(folder, lambda data: data["dense"]["encoder"].update(dimension=48))
    refuse(folder, "dimension", "48", "32")


def test_another_encoder_is_refused_with_both_hashes(dense_index, make_bert):
    other = make_bert("bge-small-en-v1.5", seed=5)
    refuse(dense_index, "encoder sha256", str(other), "--encoder", encoder=str(other))


def test_an_index_of_another_metric_is_refused(copy, dense_index):
    import faiss

    folder = copy(dense_index)
    index = faiss.IndexFlatL2(32)
    index.add(faiss.read_index(str(folder / "faiss.index")).reconstruct_n(0, 20))
    faiss.write_index(index, str(folder / "faiss.index"))
    refuse(folder, "metric", "inner_product", verify=False)


def test_files_that_are_not_an_index_are_refused(copy, dense_index, bm25_index):
    folder = copy(dense_index)
    size = (folder / "faiss.index").stat().st_size
    (folder / "faiss.index").write_bytes(b"x" * size)
    refuse(folder, "no readable FAISS index", verify=False)
    folder = copy(bm25_index)
    size = (folder / "bm25" / "params.index.json").stat().st_size
    (folder / "bm25" / "params.index.json").write_bytes(b"x" * size)
    refuse(folder, "no readable BM25 index", verify=False)


@pytest.mark.parametrize(
    "name", ["../secret", "bm25/../../secret", "/etc/hostname", "..", ".", "", "passages.arrow\0"]
)
def test_a_manifest_names_no_file_outside_its_folder(copy, bm25_index, name):
    folder = copy(bm25_index)
    (folder.parent / "secret").write_text("seven letters")
    edit_manifest(folder, lambda data: data["files"].update({name: {"bytes": 1, "sha256": "0" * 64}}))
    with pytest.raises(IndexFolderError, match="not the path of a file in this folder") as caught:
        IndexSource.open(folder)
    said = str(caught.value).replace(str(folder), "")
    assert "13" not in said  # the size of the file that it named
