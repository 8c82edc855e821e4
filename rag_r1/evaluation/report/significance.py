"""Significance tests for two runs on the same questions.

    mcnemar      exact, for answers that are right or wrong, one for each question (McNemar, Psychometrika
                 1947; the exact form is a binomial test of the questions on which the runs differ)
    permutation  for any score: whether the run that a score belongs to matters (Fisher; recommended for F1 by
                 Dror et al., ACL 2018). Signs of the differences are flipped by question, so samples of a
                 question stay together
    bootstrap_p  paired bootstrap (Koehn, EMNLP 2004; in the form of Berg-Kirkpatrick et al., EMNLP 2012)
    holm         correction for several tests (Holm, Scand. J. Statistics 1979)

All are two-sided. A p-value from random draws is (hits + 1) / (draws + 1), so that it is never 0 (Phipson
and Smyth, arXiv 1603.05766).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

#: Signs in memory at a time.
_MAX_SIGNS = 4_000_000


def mcnemar(only_first: int, only_second: int) -> float:
    """Returns the p-value, in (0, 1], from the numbers of questions that only one of the two runs has
    right."""
    differing = only_first + only_second
    combinations = 1  # differing choose i
    tail = 0
    for i in range(min(only_first, only_second) + 1):
        tail += combinations
        combinations = combinations * (differing - i) // (i + 1)
    # Whole numbers are divided exactly, however large; the quotient itself may be too small for a float.
    return min(1.0, max(2 * tail / (1 << differing), sys.float_info.min))


def permutation(differences: np.ndarray, rng: np.random.Generator, resamples: int = 10_000) -> float:
    """Returns the p-value, in (0, 1], of the sum of `differences`, (questions,).

    For a mean over sources, divide each difference by the number of its source's questions. If there are no
    more than `resamples` ways to flip the signs, all are tried, and the p-value is exact.
    """
    nonzero = differences[differences != 0]
    if not len(nonzero):
        return 1.0
    # Rounded, so that equal sizes are equal in all bits.
    nonzero = np.round(nonzero / np.abs(nonzero).max(), 12)
    threshold = abs(nonzero.sum()) - 1e-9  # the last bits of a tie depend on the order of summation
    if len(nonzero) < 63 and 2 ** len(nonzero) <= resamples:
        signs = np.arange(2 ** len(nonzero))[:, None] >> np.arange(len(nonzero)) & 1
        return float(np.mean(np.abs((1 - 2 * signs) @ nonzero) >= threshold))
    sizes, counts = np.unique(np.abs(nonzero), return_counts=True)
    is_grouped = 4 * len(sizes) <= len(nonzero)
    hits, step = 0, max(1, _MAX_SIGNS // len(sizes if is_grouped else nonzero))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        if is_grouped:  # of `count` differences of one size, a binomial number is positive
            sums = (2.0 * rng.binomial(counts, 0.5, (rows, len(sizes))) - counts) @ sizes
        else:
            sums = (1.0 - 2.0 * rng.integers(0, 2, (rows, len(nonzero)), dtype=np.int8)) @ nonzero
        hits += int((np.abs(sums) >= threshold).sum())
    return (hits + 1) / (resamples + 1)


def bootstrap_p(value: float, replicates: np.ndarray) -> float:
    """Returns the p-value, in (0, 1], of a difference, from its bootstrap replicates, (resamples,).

    Under the null hypothesis replicates scatter around 0 as they do around the difference.
    """
    is_extreme = np.abs(replicates - value) >= abs(value) - 1e-12
    return (int(is_extreme.sum()) + 1) / (len(replicates) + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the adjusted p-values, in the same order: each is the lowest level at which Holm's procedure
    rejects its hypothesis."""
    adjusted = [0.0] * len(p_values)
    running_max = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running_max = max(running_max, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = running_max
    return adjusted
