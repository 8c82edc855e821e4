from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.encode import vector_files
from retrieval_server.encode.vector_files import VectorFiles, encode_rows
from retrieval_server.errors import UserError
from retrieval_server.folder.row_layout import RowLayout


@given(st.lists(st.integers(0, 5), max_size=5), st.integers(0, 20), st.integers(0, 20))
def test_vectors_of_several_files_are_sliced_as_one_array(tmp_path_factory, sizes, start, stop):
    folder = tmp_path_factory.mktemp("vectors")
    whole = np.random.default_rng(0).standard_normal((sum(sizes), 3)).astype(np.float32)
    files, first = [], 0
    for number, size in enumerate(sizes):
        files.append(folder / f"{number}.f32")
        whole[first : first + size].tofile(files[-1])
        first += size
    vectors = VectorFiles(files, 3)
    assert len(vectors) == len(whole)
    np.testing.assert_array_equal(vectors[start:stop], whole[start:stop])
    np.testing.assert_array_equal(vectors[:], whole)


class Faulty:
    """An encoder that gives ones, and ``value`` for the passage of which that is asked."""

    section = SimpleNamespace(dimension=2, name="m")

    def __init__(self, passage: str, value: float):
        self._passage, self._value = passage, value

    def encode_passages(self, texts, batch_size):
        vectors = np.ones((len(texts), 2), np.float32)
        vectors[[text == self._passage for text in texts]] = self._value
        return vectors


class Texts:
    """Twelve passages; the text of each is its number."""

    def __len__(self):
        return 12

    def iter_contents(self, start, stop):
        return map(str, range(start, stop))


@pytest.mark.parametrize("progress", [True, False])
@pytest.mark.parametrize("there", [0, 1])
@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_a_vector_that_is_no_number_is_named_by_its_passage(tmp_path, monkeypatch, progress, there, kind):
    """``there``: blocks that an interrupted run has left."""
    monkeypatch.setattr(vector_files, "BLOCK", 4)
    path = tmp_path / "rows"
    path.write_bytes(bytes(4 * there * RowLayout(2, kind).row_bytes))
    with pytest.raises(UserError, match="m: .*vector 9 .*not finite.*--dtype float32") as caught:
        encode_rows(Texts(), Faulty("9", np.nan), path, kind=kind, progress=progress)
    assert "--preset" not in str(caught.value), "no preset can store it"


def test_a_vector_too_large_for_16_bits_is_refused_with_the_presets_that_can_hold_it(tmp_path, monkeypatch):
    monkeypatch.setattr(vector_files, "BLOCK", 4)
    encoder = Faulty("5", 1e6)
    with pytest.raises(UserError, match="vector 5 .*--preset small or exact"):
        encode_rows(Texts(), encoder, tmp_path / "f16", kind="float16", progress=False)
    for kind in ("float32", "int8"):
        encode_rows(Texts(), encoder, tmp_path / kind, kind=kind, progress=False)
