"""The benchmark of presets: each corpus has its own files, and a random vector is the same in every slice."""

from __future__ import annotations

from importlib import import_module

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import random_vectors
from benchmarks.index_presets import folder_for, make_files
from benchmarks.random_vectors import RandomVectors
from retrieval_server.encode.vector_files import VectorFiles
from retrieval_server.folder.manifest import FAISS_INDEX, ROWS

from .conftest import dense_manifest


@given(start=st.integers(0, 40), length=st.integers(0, 40))
def test_a_random_vector_is_the_same_in_every_slice_and_has_length_one(start, length):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_vectors, "_DRAWN_AT_ONCE", 8)
        vectors = RandomVectors(37, 5)
        whole = vectors[:]
        assert whole.shape == (37, 5) and whole.dtype == np.float32 and len(np.unique(whole, axis=0)) == 37
        np.testing.assert_array_equal(vectors[start : start + length], whole[start : start + length])
        np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, rtol=1e-6)


def test_another_corpus_or_encoder_has_another_folder(tmp_path):
    def folder(preset="small", corpus="a", **encoder):
        return folder_for(tmp_path, preset, dense_manifest(corpus, encoder))

    others = [folder("balanced"), folder(corpus="b"), folder(sha256="d"), folder(max_length=17)]
    assert len({folder(), *others}) == 5
    assert folder(name="elsewhere") == folder()


def test_an_index_that_was_not_finished_is_made_again(tmp_path, monkeypatch):
    def stops(rows, factory, path, *_, **__):
        path.write_bytes(b"half an index")
        raise KeyboardInterrupt

    # What takes the function over when it is imported must have been imported before: it would keep this one.
    import_module("retrieval_server.indexing.dense_build")
    with monkeypatch.context() as patch:
        patch.setattr("retrieval_server.indexing.faiss_build.write_faiss_index", stops)
        with pytest.raises(KeyboardInterrupt):
            make_files("small", RandomVectors(200, 8), tmp_path)
    make_files("small", RandomVectors(200, 8), tmp_path)
    assert faiss.read_index(str(tmp_path / FAISS_INDEX)).ntotal == 200
    assert len(VectorFiles([tmp_path / ROWS], 8, "int8")) == 200
