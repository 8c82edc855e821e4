"""Significance tests for two runs on the same questions.

    mcnemar      McNemar's exact test, for one right or wrong answer per question (McNemar, Psychometrika
                 1947; the exact form is a binomial test of the questions on which the runs differ)
    permutation  Fisher's permutation test, for any score: does it matter to which run a score belongs?
                 (recommended for F1 by Dror et al., ACL 2018). The signs of the differences are flipped by
                 question, so that the samples of a question stay together
    bootstrap_p  the paired bootstrap (Koehn, EMNLP 2004; in the form of Berg-Kirkpatrick et al., EMNLP 2012)
    holm         the correction for several tests (Holm, Scand. J. Statistics 1979)

All tests are two-sided. A p-value from random draws is (hits + 1) / (draws + 1), so that it is never 0
(Phipson and Smyth, arXiv 1603.05766).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

#: The most signs that are in memory at the same time.
_MAX_SIGNS = 4_000_000


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the p-value, in (0, 1], of McNemar's exact test. The arguments are the numbers of questions
    that only the first and only the second run has answered correctly."""
    differing = only_first + only_second
    combinations = 1  # "differing choose i"
    tail = 0
    for i in range(min(only_first, only_second) + 1):
        tail += combinations
        combinations = combinations * (differing - i) // (i + 1)
    # Python divides integers of any size exactly, but the quotient may be too small for a float.
    return min(1.0, max(2 * tail / (1 << differing), sys.float_info.min))


def permutation(differences: np.ndarray, rng: np.random.Generator, resamples: int = 10_000) -> float:
    """Return the p-value, in (0, 1], of the sum of `differences`, an array of shape (questions,).

    For a mean over sources, divide each difference by the number of questions of its source first. If there
    are at most `resamples` ways to flip the signs, all of them are tried, and the p-value is exact.
    """
    nonzero = differences[differences != 0]
    if not len(nonzero):
        return 1.0
    # Rounding makes differences of the same size equal in all bits, so that they can be grouped.
    nonzero = np.round(nonzero / np.abs(nonzero).max(), 12)
    threshold = abs(nonzero.sum()) - 1e-9  # tolerates the rounding errors of ties
    # Below 63, the power is soon computed, and the signs are bits of one integer.
    if len(nonzero) < 63 and 2 ** len(nonzero) <= resamples:
        signs = np.arange(2 ** len(nonzero))[:, None] >> np.arange(len(nonzero)) & 1
        return float(np.mean(np.abs((1 - 2 * signs) @ nonzero) >= threshold))
    sizes, counts = np.unique(np.abs(nonzero), return_counts=True)
    # A binomial number takes longer than a sign, so groups must be large on average.
    is_grouped = 4 * len(sizes) <= len(nonzero)
    hits, step = 0, max(1, _MAX_SIGNS // len(sizes if is_grouped else nonzero))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        if is_grouped:  # the number of positive signs among `counts` equal sizes is binomial
            sums = (2.0 * rng.binomial(counts, 0.5, (rows, len(sizes))) - counts) @ sizes
        else:
            sums = (1.0 - 2.0 * rng.integers(0, 2, (rows, len(nonzero)), dtype=np.int8)) @ nonzero
        hits += int((np.abs(sums) >= threshold).sum())
    return (hits + 1) / (resamples + 1)


def bootstrap_p(value: float, replicates: np.ndarray) -> float:
    """Return the p-value, in (0, 1], of a difference with the bootstrap replicates (resamples,).

    Under the null hypothesis, replicates are assumed to scatter around 0 as these do around the difference.
    """
    is_extreme = np.abs(replicates - value) >= abs(value) - 1e-12  # tolerates rounding errors
    return (int(is_extreme.sum()) + 1) / (len(replicates) + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the adjusted p-values in the same order. Each is the lowest significance level at which Holm's
    procedure rejects the hypothesis."""
    adjusted = [0.0] * len(p_values)
    running_max = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running_max = max(running_max, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = running_max
    return adjusted
