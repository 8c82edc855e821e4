"""Bootstrap intervals: they contain the value, shrink with the data, heed clusters, and cover the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.evaluation.report.bootstrap import Bootstrap, Estimate, RatioSums


def of_source(values, bootstrap: Bootstrap, share: bool = True, name: str = "nq") -> Estimate:
    """The estimate of the mean of one source's questions."""
    column = np.asarray(values, dtype=float)[:, None]
    return bootstrap.estimates({name: RatioSums.of_means(column)}, [share])[0][name]


def ends(estimate: Estimate) -> tuple[float, float, float]:
    return float(estimate.low[0]), float(estimate.value[0]), float(estimate.high[0])


@settings(max_examples=40)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30), st.integers(0, 5))
def test_an_interval_contains_the_mean_and_lies_within_the_values(values, seed):
    low, mean, high = ends(of_source(values, Bootstrap(200, seed=seed), share=False))
    assert low <= mean <= high and mean == pytest.approx(np.mean(values))
    # Sums are in floating point: up to their rounding.
    assert min(values) - 1e-6 <= low and high <= max(values) + 1e-6


def test_an_interval_shrinks_as_one_over_the_root_of_the_number_of_questions():
    intervals = [ends(of_source([0.0, 1.0] * pairs, Bootstrap(4000))) for pairs in (25, 100, 400)]
    widths = [high - low for low, _, high in intervals]
    assert widths[0] / widths[1] == pytest.approx(2, rel=0.15)
    assert widths[1] / widths[2] == pytest.approx(2, rel=0.15)


def test_an_interval_is_that_of_the_normal_distribution_for_many_questions():
    low, _, high = ends(of_source([1.0] * 300 + [0.0] * 700, Bootstrap(4000)))
    half = 1.96 * np.sqrt(0.3 * 0.7 / 1000)
    assert [low, high] == pytest.approx([0.3 - half, 0.3 + half], abs=0.004)


@pytest.mark.parametrize(("right", "expected"), [(0, (0.0, 0.3085)), (1, (0.6915, 1.0))])
def test_if_all_are_wrong_or_right_the_interval_is_clopper_and_pearsons(right, expected):
    # For 0 of 10 the upper end of the exact 95 % interval is 1 - 0.025^(1/10) = 0.3085.
    low, _, high = ends(of_source([float(right)] * 10, Bootstrap(50)))
    assert (low, high) == pytest.approx(expected, abs=1e-4)


def test_the_mean_of_sources_that_are_all_wrong_is_not_certain_either():
    sums = {name: RatioSums.of_means(np.zeros((n, 1))) for name, n in (("a", 10), ("b", 20))}
    each, mean, whole = Bootstrap(50).estimates(sums, [True])
    assert mean.high[0] == pytest.approx((each["a"].high[0] + each["b"].high[0]) / 2)
    assert 0 < whole.high[0] < mean.high[0]


def test_one_question_has_no_interval():
    low, value, high = ends(of_source([0.5], Bootstrap(50)))
    assert value == 0.5 and np.isnan(low) and np.isnan(high)


def test_a_ratio_is_the_ratio_of_the_sums():
    sums = RatioSums(np.array([[1.0], [0.0], [3.0]]), np.array([[1.0], [0.0], [4.0]]))
    [estimate] = Bootstrap(100).estimates({"a": sums}, [True])[0].values()
    assert estimate.value[0] == 0.8 and 0.75 <= estimate.low[0] <= estimate.high[0] <= 1.0


def test_a_figure_that_a_source_lacks_is_left_out_of_the_mean():
    first = RatioSums.of_means(np.array([[0.2, 1.0], [0.4, 3.0]]))
    second = RatioSums(np.array([[0.5, 0.0], [0.7, 0.0]]), np.array([[1.0, 0.0], [1.0, 0.0]]))
    each, mean, whole = Bootstrap(100).estimates({"a": first, "b": second}, [False, False])
    assert np.isnan(each["b"].value[1]) and np.isnan(each["b"].low[1])
    assert mean.value.tolist() == pytest.approx([0.45, 2.0])
    assert whole.value.tolist() == pytest.approx([0.45, 2.0])
    assert not np.isnan(mean.low[1])


def test_a_replicate_without_a_value_of_a_source_is_no_replicate_of_the_mean():
    """One question of three has the figure: some replicates of this source have no value."""
    rare = RatioSums(np.array([[0.5], [0.0], [0.0]]), np.array([[1.0], [0.0], [0.0]]))
    often = RatioSums.of_means(np.full((4, 1), 0.1))
    _, mean, _ = Bootstrap(100).estimates({"a": rare, "b": often}, [False])
    assert ends(mean) == pytest.approx((0.3, 0.3, 0.3)) and np.isnan(mean.replicates).any()


def test_a_source_has_the_same_interval_whatever_else_is_there():
    values = np.random.default_rng(1).random((30, 1))
    other = RatioSums.of_means(np.ones((7, 1)))
    alone = Bootstrap(100).estimates({"nq": RatioSums.of_means(values)}, [False])[0]["nq"]
    beside = Bootstrap(100).estimates({"a": other, "nq": RatioSums.of_means(values)}, [False])[0]["nq"]
    assert ends(alone) == ends(beside)
    assert ends(of_source(values[:, 0], Bootstrap(100, seed=1), share=False)) != ends(alone)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "p"), [(60, 0.4), (125, 0.15)])
def test_coverage_for_questions(n, p):
    """Of 600 simulated runs about 95 % have the truth in their interval (percentile intervals of small
    samples cover a little less)."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(600):
        low, _, high = ends(of_source(rng.random(n) < p, Bootstrap(500)))
        hits += low <= p <= high
    assert 0.915 <= hits / 600 <= 0.975


@pytest.mark.slow
def test_coverage_for_clusters_of_samples_and_that_without_clusters_it_fails():
    """Sixteen samples of each of 60 questions, which differ in difficulty. Resampling questions covers the
    truth; resampling samples, as if each were a question, does not."""
    rng = np.random.default_rng(0)
    clustered = naive = 0
    for _ in range(400):
        difficulty = rng.beta(0.5, 0.5, 60)
        right = rng.random((60, 16)) < difficulty[:, None]
        low, _, high = ends(of_source(right.mean(axis=1), Bootstrap(400)))
        clustered += low <= 0.5 <= high
        low, _, high = ends(of_source(right.ravel(), Bootstrap(100)))
        naive += low <= 0.5 <= high
    assert 0.91 <= clustered / 400 <= 0.98 and naive / 400 < 0.75


@pytest.mark.slow
def test_coverage_of_the_mean_over_sources_of_different_sizes():
    rng = np.random.default_rng(0)
    shares = {"a": (200, 0.3), "b": (60, 0.6), "c": (40, 0.2)}
    truth = np.mean([p for _, p in shares.values()])
    hits = 0
    for _ in range(400):
        draws = {name: (rng.random((n, 1)) < p).astype(float) for name, (n, p) in shares.items()}
        sums = {name: RatioSums.of_means(values) for name, values in draws.items()}
        mean = Bootstrap(400).estimates(sums, [True])[1]
        hits += mean.low[0] <= truth <= mean.high[0]
    assert 0.91 <= hits / 400 <= 0.98
