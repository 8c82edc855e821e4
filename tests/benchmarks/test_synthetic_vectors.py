"""Synthetic vectors: the same in every slice, and like the real ones they are made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import synthetic_vectors
from benchmarks.synthetic_vectors import RealVectors, SyntheticVectors, neighbourhoods, synthetic_questions
from benchmarks.vector_structure import expected, local_dimension, nearest, power_of_first


def clustered(many: int, dimension: int = 24, inner: int = 4, seed: int = 0) -> np.ndarray:
    """Unit vectors in twenty clusters, each of which lies in a few dimensions of its own."""
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((20, dimension))
    spans = draw.standard_normal((20, inner, dimension)) / np.sqrt(dimension)
    of = draw.integers(0, 20, many)
    drawn = centres[of] + 2 * np.einsum("ni,nid->nd", draw.standard_normal((many, inner)), spans[of])
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


REAL = clustered(400)


@settings(deadline=None, max_examples=20)
@given(start=st.integers(0, 60), length=st.integers(0, 60))
def test_a_row_is_the_same_in_every_slice_and_in_a_corpus_of_any_size(start, length):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic_vectors, "BLOCK", 16)
        vectors = SyntheticVectors(REAL, 50)
        whole = SyntheticVectors(REAL, 90)[:]
        assert whole.shape == (90, 24) and whole.dtype == np.float32
        assert len(np.unique(whole, axis=0)) == 90
        np.testing.assert_array_equal(vectors[start : start + length], whole[:50][start : start + length])
        np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, rtol=1e-5)


def test_another_seed_gives_other_vectors():
    assert not np.allclose(SyntheticVectors(REAL, 5, seed=1)[:], SyntheticVectors(REAL, 5)[:])


def test_too_few_real_vectors_have_no_neighbourhoods():
    with pytest.raises(ValueError, match="32 real vectors; more than 32 are needed"):
        SyntheticVectors(REAL[:32], 5)


def test_a_neighbourhood_is_the_vector_itself_and_its_nearest():
    indices = neighbourhoods(REAL)
    rows = np.arange(len(REAL))
    np.testing.assert_array_equal(indices[:, 0], rows)
    scores = REAL @ REAL.T
    for row in (0, 7, 399):
        others = np.delete(rows, row)
        best = others[np.argsort(-scores[row, others])[:32]]
        assert set(indices[row, 1:].tolist()) == set(best.tolist())


def test_they_lie_as_near_to_each_other_as_the_real_ones_and_independent_noise_does_not():
    made = SyntheticVectors(REAL, 400)[:]
    noise = np.random.default_rng(1).standard_normal(REAL.shape).astype(np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    real, ours, theirs = (
        nearest(vectors, vectors[:200], 11)[:, 1:].mean() for vectors in (REAL, made, noise)
    )
    assert abs(ours - real) < 0.1 < real - theirs


def test_a_larger_corpus_is_denser():
    means = [
        nearest(SyntheticVectors(REAL, many), SyntheticVectors(REAL, 200)[:], 2)[:, 1].mean()
        for many in (400, 4000)
    ]
    assert means[1] > means[0] + 0.01


def test_questions_move_with_the_passages_that_answer_them():
    draw = np.random.default_rng(2)
    questions_ = REAL[:40] + 0.15 * draw.standard_normal((40, 24)).astype(np.float32)
    questions_ /= np.linalg.norm(questions_, axis=1, keepdims=True)
    real = RealVectors(REAL, questions_, [[row] for row in range(40)])
    vectors = SyntheticVectors(REAL, 40_000)
    questions, rows = synthetic_questions(vectors, real, 60)
    assert questions.shape == (60, 24) and len(set(rows.tolist())) == 60
    assert rows.min() < synthetic_vectors.BLOCK and rows.max() > 2 * synthetic_vectors.BLOCK
    for row in rows.tolist():
        parent = vectors.parents(row // synthetic_vectors.BLOCK)[row % synthetic_vectors.BLOCK]
        assert parent < 40, "the parent is a passage that answers a question"
    golds = np.concatenate([vectors[row : row + 1] for row in rows.tolist()])
    near = (questions * golds).sum(axis=1).mean()
    assert abs(near - (questions_ * REAL[:40]).sum(axis=1).mean()) < 0.1


def test_the_local_dimension_of_points_on_a_sphere_is_that_of_the_sphere():
    draw = np.random.default_rng(0).standard_normal((20_000, 4)).astype(np.float32)
    draw /= np.linalg.norm(draw, axis=1, keepdims=True)
    similarities = nearest(draw, draw[:500], 101)[:, 1:]
    assert local_dimension(similarities, 100) == pytest.approx(3, rel=0.1)


def test_what_the_power_law_expects_is_what_a_larger_sample_of_the_same_has():
    many = clustered(8000)
    first, dimension = power_of_first(many[:2000])
    similarities = nearest(many, many[:500], 11)[:, 1:].mean(axis=0)
    assert expected(2000, first, dimension, 2000, 1) == pytest.approx(1 - first**2 / 2)
    assert expected(2000, first, dimension, 8000, 1) == pytest.approx(similarities[0], abs=0.03)


def test_a_row_lies_nearer_to_its_parent_than_to_nearly_all_other_passages():
    vectors = SyntheticVectors(REAL, 200)
    parents = vectors.parents(0)[:200]
    scores = vectors[:] @ REAL.T
    own_scores = scores[np.arange(200), parents]
    assert np.median((scores > own_scores[:, None]).sum(axis=1)) < 10
