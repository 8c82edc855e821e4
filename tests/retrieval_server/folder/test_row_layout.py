"""Vectors on disk: what comes back, in which type, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from retrieval_server.errors import ValueTooLargeError
from retrieval_server.folder.row_layout import RowLayout

KINDS = ("float32", "float16", "int8")
VALUES = st.floats(-1e4, 1e4, width=32)
BLOCKS = st.integers(1, 9).flatmap(
    lambda width: arrays(np.float32, st.tuples(st.integers(0, 6), st.just(width)), elements=VALUES)
)


def back(layout: RowLayout, vectors: np.ndarray) -> np.ndarray:
    stored = np.frombuffer(layout.encode(vectors), np.uint8).reshape(len(vectors), layout.row_bytes)
    return layout.decode(stored)


@given(vectors=BLOCKS, kind=st.sampled_from(KINDS))
def test_a_vector_comes_back_within_the_rounding_of_its_type(vectors, kind):
    results = back(RowLayout(vectors.shape[1], kind), vectors)
    largest = np.abs(vectors).max(axis=1, initial=0.0, keepdims=True)
    step = {"float32": 0 * largest, "float16": largest / 2**11 + 1e-7, "int8": largest / 253 + 1e-30}[kind]
    assert results.dtype == np.float32 and results.shape == vectors.shape
    assert (np.abs(results - vectors) <= step).all()


@given(vectors=BLOCKS, kind=st.sampled_from(KINDS))
def test_rows_do_not_depend_on_those_around_them(vectors, kind):
    layout = RowLayout(vectors.shape[1], kind)
    assert layout.encode(vectors) == b"".join(layout.encode(row[None]) for row in vectors)


@given(vectors=BLOCKS, kind=st.sampled_from(KINDS))
def test_rows_that_are_decoded_and_encoded_again_are_the_same_bytes(vectors, kind):
    vectors = np.where(np.abs(vectors) < 1e-30, np.float32(0), vectors)  # below, a scale has fewer digits
    layout = RowLayout(vectors.shape[1], kind)
    assert layout.encode(back(layout, vectors)) == layout.encode(vectors)


@pytest.mark.parametrize("kind, size", [("float32", 3072), ("float16", 1536), ("int8", 772)])
def test_the_bytes_of_a_row_are_known_beforehand(kind, size):
    layout = RowLayout(768, kind)
    assert layout.row_bytes == size == len(layout.encode(np.ones((1, 768), np.float32)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused_with_its_row(kind, value):
    vectors = np.ones((3, 4), np.float32)
    vectors[2, 1] = value
    with pytest.raises(ValueError, match="vector 2 .*not finite"):
        RowLayout(4, kind).encode(vectors)
    with pytest.raises(ValueError, match="vector 102 "):
        RowLayout(4, kind).encode(vectors, first_row=100)


def test_a_value_too_large_for_16_bits_is_refused_and_8_bits_take_it():
    vectors = np.full((1, 4), 1e6, np.float32)
    with pytest.raises(ValueTooLargeError, match="vector 0 .*float16"):
        RowLayout(4, "float16").encode(vectors)
    assert back(RowLayout(4, "int8"), vectors) == pytest.approx(vectors, rel=1e-6)
