"""Computes bootstrap intervals: percentile intervals, stratified by data source and clustered by question.

Every figure of a report is a ratio of two sums over questions; for a plain mean, the second sum is the number
of questions. A replicate resamples the questions of a source with replacement and computes the ratio again.
The interval contains the middle `level` of the replicates (Efron and Tibshirani, An Introduction to the
Bootstrap, 1993, ch. 13). A question is drawn with all of its samples, because samples of one question are not
independent (Davison and Hinkley, Bootstrap Methods, 1997, 3.8; Miller, arXiv 2411.00640). Each source is
resampled separately, at its own size, and the mean over the sources is computed from these replicates
(Agarwal et al., arXiv 2108.13264).

If all values of a share are 0, all replicates are equal, and percentiles would suggest certainty. The
interval is then that of Clopper and Pearson for no success in as many questions; if all values are 1, it is
the one for no failure. If this holds for every source, the interval of the mean over the sources is the mean
of their intervals.

The draws of a source depend only on the seed and the source's name, so the same questions give the same
interval in every report. A replicate is a vector of counts, which is multiplied with the values of all
figures in one matrix product.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

#: The most draws that are in memory at the same time.
_MAX_DRAWS = 4_000_000


@dataclass(frozen=True)
class RatioSums:
    """The terms of the two sums for the questions of one source. A question without a figure has 0 in
    both."""

    #: Shape (questions, figures).
    numerators: np.ndarray
    #: Shape (questions, figures).
    denominators: np.ndarray

    @classmethod
    def of_means(cls, values: np.ndarray) -> RatioSums:
        """Return the sums for plain means of `values`, an array of shape (questions, figures)."""
        return cls(values, np.ones_like(values))


@dataclass(frozen=True)
class Estimate:
    """Figures with their intervals, nan where there is no value or no interval."""

    #: Shape (figures,), like `low` and `high`.
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    #: Shape (resamples, figures).
    replicates: np.ndarray


class Estimates(NamedTuple):
    """The estimates for each source, for the mean over the sources, and for all questions together."""

    by_source: dict[str, Estimate]
    mean: Estimate
    overall: Estimate


@dataclass(frozen=True)
class Bootstrap:
    """The method and the parameters with which intervals are computed."""

    resamples: int = 2000
    #: The share of the replicates that an interval contains.
    level: float = 0.95
    seed: int = 0

    def description(self) -> dict[str, Any]:
        """Return the parameters as the files of results record them."""
        return {"level": self.level, "resamples": self.resamples, "seed": self.seed}

    def estimates(self, sources: Mapping[str, RatioSums], shares: Sequence[bool]) -> Estimates:
        """Return the figures of each source, their means over the sources, and those of all questions.

        There must be a source. `shares` says for each figure whether its values are in [0, 1]. A source
        without a value of a figure is left out of that figure's mean.
        """
        totals = {name: _totals(sums) for name, sums in sources.items()}
        draws = {name: self._draw(name, sums) for name, sums in sources.items()}
        by_source = {
            name: self._bounded_estimate(_divide(*totals[name]), _divide(*draws[name]), sums, shares)
            for name, sums in sources.items()
        }
        estimates = by_source.values()
        values = np.stack([estimate.value for estimate in estimates])
        replicates = np.stack([estimate.replicates for estimate in estimates], axis=1)
        mean = self._estimate(_mean(values, values), _mean(values, replicates))
        certain = np.array(shares) & ((mean.value == 0.0) | (mean.value == 1.0))
        mean.low[certain] = _mean(values, np.stack([estimate.low for estimate in estimates]))[certain]
        mean.high[certain] = _mean(values, np.stack([estimate.high for estimate in estimates]))[certain]
        overall = self._bounded_estimate(
            _divide(*_sums_of(totals.values())),
            _divide(*_sums_of(draws.values())),
            RatioSums(
                np.concatenate([sums.numerators for sums in sources.values()]),
                np.concatenate([sums.denominators for sums in sources.values()]),
            ),
            shares,
        )
        return Estimates(by_source, mean, overall)

    def _draw(self, name: str, sums: RatioSums) -> tuple[np.ndarray, np.ndarray]:
        """Draw the replicates of a source. Returns their numerators and denominators, (resamples, figures)
        each."""
        questions, figures = sums.numerators.shape
        columns = np.concatenate([sums.numerators, sums.denominators], axis=1)
        rng = np.random.default_rng([self.seed, _seed_of(name)])
        replicates = np.empty((self.resamples, 2 * figures))
        step = max(1, _MAX_DRAWS // max(1, questions))
        for start in range(0, self.resamples, step):
            rows = min(step, self.resamples - start)
            draws = rng.integers(0, questions, (rows, questions))
            draws += np.arange(rows)[:, None] * questions
            counts = np.bincount(draws.ravel(), minlength=rows * questions).reshape(rows, questions)
            replicates[start : start + rows] = counts.astype(float) @ columns
        return replicates[:, :figures], replicates[:, figures:]

    def _estimate(self, value: np.ndarray, replicates: np.ndarray) -> Estimate:
        """Return the values with the percentile intervals of their replicates."""
        tail = (1 - self.level) / 2
        low, high = np.full_like(value, np.nan), np.full_like(value, np.nan)
        for i in range(len(value)):
            finite = replicates[~np.isnan(replicates[:, i]), i]
            if not np.isnan(value[i]) and len(finite):
                low[i], high[i] = np.quantile(finite, [tail, 1 - tail])
        # Replicates are summed in another order than the value, so the last bits may differ.
        return Estimate(value, np.fmin(low, value), np.fmax(high, value), replicates)

    def _bounded_estimate(
        self, value: np.ndarray, replicates: np.ndarray, sums: RatioSums, shares: Sequence[bool]
    ) -> Estimate:
        """Return the estimate with Clopper and Pearson's bound for a share whose values are all 0 or all 1,
        and without an interval for other figures of a single question."""
        estimate = self._estimate(value, replicates)
        for i, share in enumerate(shares):
            questions = int((sums.denominators[:, i] > 0).sum())
            if share and value[i] == 0.0:
                estimate.high[i] = 1 - ((1 - self.level) / 2) ** (1 / questions)
            elif share and value[i] == 1.0:
                estimate.low[i] = ((1 - self.level) / 2) ** (1 / questions)
            elif questions < 2:
                estimate.low[i] = estimate.high[i] = np.nan
        return estimate


#: The intervals of reports by default.
DEFAULT_BOOTSTRAP = Bootstrap()


def _sums_of(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of the first arrays and the sum of the second arrays."""
    firsts, seconds = zip(*pairs, strict=True)
    return sum(firsts), sum(seconds)


def _totals(sums: RatioSums) -> tuple[np.ndarray, np.ndarray]:
    """Return both sums over the questions, (figures,) each."""
    return sums.numerators.sum(axis=0), sums.denominators.sum(axis=0)


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the ratio; nan where the denominator is 0."""
    out = np.full(np.shape(numerator), np.nan)
    return np.divide(numerator, denominator, out=out, where=denominator > 0)


def _mean(values: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """Return the mean of `terms`, (..., sources, figures), over the sources with a value in `values`,
    (sources, figures). The mean is nan if no source has a value, or if such a source has nan in `terms`."""
    is_number = ~np.isnan(values)
    total = np.where(is_number, terms, 0.0).sum(axis=-2)
    count = is_number.sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _seed_of(name: str) -> int:
    """Return a number that depends only on the name, unlike `hash`, which differs between processes."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:8], "big")
