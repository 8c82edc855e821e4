"""The benchmark of presets: each corpus has its own files, and a random vector is the same in every slice."""

from __future__ import annotations

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import index_presets
from benchmarks.index_presets import RandomVectors, folder_for, make_files
from retrieval_server.encode.encoding import Vectors
from retrieval_server.folder.manifest import FAISS_INDEX, ROWS


@given(start=st.integers(0, 40), length=st.integers(0, 40))
def test_a_random_vector_is_the_same_in_every_slice_and_has_length_one(start, length):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_presets, "_DRAWN_AT_ONCE", 8)
        vectors = RandomVectors(37, 5)
        whole = vectors[:]
        assert whole.shape == (37, 5) and whole.dtype == np.float32 and len(np.unique(whole, axis=0)) == 37
        np.testing.assert_array_equal(vectors[start : start + length], whole[start : start + length])
        np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, rtol=1e-6)


def test_another_corpus_or_encoder_has_another_folder(tmp_path):
    names = {
        folder_for(tmp_path, preset, corpus, encoder)
        for preset in ("small", "balanced")
        for corpus in ("a" * 64, "b" * 64)
        for encoder in ("c" * 64, "d" * 64)
    }
    assert len(names) == 8


def test_an_index_that_was_not_finished_is_made_again(tmp_path, monkeypatch):
    def stops(rows, factory, path, *_, **__):
        path.write_bytes(b"half an index")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("retrieval_server.indexing.faiss_build.write_faiss_index", stops)
        with pytest.raises(KeyboardInterrupt):
            make_files("small", RandomVectors(200, 8), tmp_path)
    make_files("small", RandomVectors(200, 8), tmp_path)
    assert faiss.read_index(str(tmp_path / FAISS_INDEX)).ntotal == 200
    assert len(Vectors([tmp_path / ROWS], 8, "int8")) == 200
