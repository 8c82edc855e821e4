"""The tests of differences: against values from tables and by hand, and what must hold for any data."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.evaluation.report.significance import bootstrap_p, holm, mcnemar, permutation


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(st.integers(0, 100), st.integers(0, 100))
def test_mcnemar_equals_the_sum_of_the_tail_of_the_binomial_distribution(first, second):
    n, fewer = first + second, min(first, second)
    tail = sum(math.comb(n, i) for i in range(fewer + 1)) / 2**n
    assert mcnemar(first, second) == mcnemar(second, first) == pytest.approx(min(1.0, 2 * tail))


def test_mcnemar_has_a_known_value_and_no_limit_of_size():
    assert mcnemar(2, 10) == 0.03857421875  # Agresti, Categorical Data Analysis: binom.test(2, 12) = 0.03857
    assert mcnemar(0, 20_000) > 0
    # By the normal approximation with continuity correction: z = 199 / sqrt(10000) = 1.99.
    assert mcnemar(4900, 5100) == pytest.approx(math.erfc(1.99 / math.sqrt(2)), rel=0.01)


def by_hand(differences: list[float]) -> float:
    """All ways to flip the signs."""
    signs = np.array(list(product((1, -1), repeat=len(differences))))
    return float(np.mean(np.abs(signs @ differences) >= abs(sum(differences)) - 1e-9))


@settings(max_examples=30)
@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=8))
def test_few_differences_are_permuted_in_all_ways(differences):
    assert permutation(np.array(differences), rng()) == pytest.approx(by_hand(differences))


@settings(max_examples=30)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40), st.integers(0, 3))
def test_a_permutation_p_is_a_probability_the_same_for_either_direction(differences, seed):
    values = np.array(differences)
    p = permutation(values, rng(seed), 200)
    assert 0 < p <= 1
    assert permutation(-values, rng(seed), 200) == p


def test_many_differences_are_permuted_at_random_with_the_same_result():
    values = np.random.default_rng(3).normal(0.25, 1, 12)
    exact = permutation(values, rng(), 4096)
    assert permutation(values, rng(), 4095) == pytest.approx(exact, abs=0.03)  # too many ways to try all


def test_differences_of_few_sizes_are_permuted_as_binomial_numbers():
    """Sixty of one size and forty of another: against flips of single signs."""
    values = np.array([0.5] * 40 + [-0.5] * 20 + [1 / 3] * 15 + [-1 / 3] * 25)
    signs = 1 - 2 * rng(1).integers(0, 2, (20_000, 100))
    single = np.mean(np.abs(signs @ values) >= abs(values.sum()) - 1e-9)
    assert permutation(values, rng()) == pytest.approx(single, abs=0.015)


def test_a_permutation_p_does_not_depend_on_the_unit():
    values = np.array([0.5] * 40 + [-0.5] * 28 + [0.1] * 5)
    assert permutation(values, rng()) == permutation(values * 1e-9, rng()) == permutation(values * 3, rng())


def test_permutation_and_mcnemar_agree_on_right_and_wrong():
    """Flipping the signs of differences of 1 and -1 is McNemar's binomial test."""
    values = np.array([1.0] * 3 + [-1.0] * 8 + [0.0] * 50)
    assert permutation(values, rng()) == pytest.approx(mcnemar(3, 8))


def test_equal_runs_have_p_1():
    assert permutation(np.zeros(9), rng()) == 1.0
    assert bootstrap_p(0.0, np.zeros(100)) == 1.0


def test_a_bootstrap_p_is_never_0():
    assert bootstrap_p(1.0, np.ones(99)) == pytest.approx(0.01)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=9))
def test_holm_only_raises_keeps_the_order_and_stays_within_bonferroni(p_values):
    adjusted = holm(p_values)
    for p, raised in zip(p_values, adjusted, strict=True):
        assert p <= raised <= min(1.0, p * len(p_values)) + 1e-12
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


@pytest.mark.slow
def test_without_a_difference_one_test_in_twenty_is_significant_at_five_per_cent():
    draws = np.random.default_rng(0)
    permuted, bootstrapped = [], []
    for i in range(500):
        values = draws.normal(0, 1, 40)
        permuted.append(permutation(values, rng(i), 400))
        replicates = values[draws.integers(0, 40, (400, 40))].mean(axis=1)
        bootstrapped.append(bootstrap_p(values.mean(), replicates))
    assert 0.03 <= np.mean(np.array(permuted) <= 0.05) <= 0.075
    assert 0.03 <= np.mean(np.array(bootstrapped) <= 0.05) <= 0.09
