"""The metrics of a training so far, as series over its steps.

`History.add` takes the metrics of one step as veRL logged them. If a step is trained again, its new metrics
replace the old ones and those of all later steps, so a run that was killed or set back has one value per
step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Our series of a validation -> how the names of the matching metrics of veRL end, in order of preference.
_HELD_OUT = {"held_out": ("/right/mean@1", "/em/mean@1"), "held_out_score": ("/score/mean@1",)}
#: Metrics with a step's share of right answers, in order of preference. Runs of earlier versions have no
#: `right`, and runs without gold answers have neither.
_SHARES = ("search/right", "search/em")
#: The weight of the assumed maximal deviation, in differences between neighbouring steps.
_PRIOR_DIFFERENCES = 8


@dataclass
class Series:
    """The values of one metric, with the steps at which they were logged, in order."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)

    def recent(self, window: int) -> float:
        """Return the mean of the last `window` values."""
        return mean(self.values[-window:])

    def windows(self, window: int) -> list[float]:
        """Return the mean of every run of `window` consecutive values before the last `window` ones."""
        values = self.values[:-window]
        return [mean(values[i : i + window]) for i in range(len(values) - window + 1)]

    def differences(self) -> list[float]:
        """Return the absolute differences of neighbouring values."""
        return [abs(b - a) for a, b in zip(self.values, self.values[1:], strict=False)]

    def since(self, window: int) -> int:
        """Return the first of the steps of the last `window` values."""
        return self.steps[-min(window, len(self))]


class History:
    """The series of a run's metrics by their names.

    `questions` is the number of questions in a step if they are drawn at random, else None.
    """

    def __init__(self, questions: int | None = None) -> None:
        self.questions = questions
        #: The last step; -1 before the first.
        self.step = -1
        self._series: dict[str, Series] = {}

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of a step as veRL logged them. Values that are not numbers are left out."""
        if step <= self.step:
            self.back_to(step - 1)
        self.step = step
        numbers = {
            name: _as_float(value)
            for name, value in metrics.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        for name, value in [*numbers.items(), *_held_out(numbers)]:
            series = self._series.setdefault(name, Series())
            series.steps.append(step)
            series.values.append(value)

    def back_to(self, step: int) -> None:
        """Forget all steps after this one."""
        for series in self._series.values():
            count = sum(past_step <= step for past_step in series.steps)
            del series.steps[count:], series.values[count:]
        self.step = min(self.step, step)

    def __getitem__(self, name: str) -> Series:
        """Return the series of a metric, which is empty if the metric was never logged."""
        return self._series.get(name, Series())

    def now(self, name: str) -> float | None:
        """Return the value of a metric in the last step; None if it was not logged there."""
        series = self[name]
        return series.values[-1] if series.steps[-1:] == [self.step] else None

    @property
    def right(self) -> Series:
        """The share of right answers in training or, if it was never logged, the mean reward."""
        return self._shares if len(self._shares) else self["search/score"]

    @property
    def _shares(self) -> Series:
        return next((self[name] for name in _SHARES if len(self[name])), Series())

    def right_deviation(self, share: float) -> float:
        """Return the standard deviation of a step's right answers around a mean of `share`.

        It is measured from the differences of neighbouring steps. The largest one and a further tenth are
        left out, since one of them may be the fall that is being judged. A few differences say little, and in
        the first steps a fast training looks like noise. Therefore the measurement is averaged with the
        largest deviation to be expected, which counts as `_PRIOR_DIFFERENCES` differences: that of questions
        drawn at random whose answers are all right or all wrong or, if questions are not drawn at random,
        that of two steps with the largest difference before the last one.
        """
        changes = self.right.differences()
        usual_changes = sorted(changes)[: len(changes) - len(changes) // 10 - 1]
        maximum = max(changes[:-1], default=1.0) / math.sqrt(2)
        if self.questions is not None and len(self._shares):
            maximum = math.sqrt(max(0.0, share * (1 - share)) / self.questions)
        # For a normal distribution the mean |difference| is 1.13 deviations, or 0.9 without the largest ones.
        measured = min(mean(usual_changes) / 0.9, maximum) if usual_changes else maximum
        count = len(changes)
        # Not by squares, which overflow for the largest floats that a logger may write.
        weighted_sum = math.hypot(math.sqrt(_PRIOR_DIFFERENCES) * maximum, math.sqrt(count) * measured)
        return weighted_sum / math.sqrt(_PRIOR_DIFFERENCES + count)

    @property
    def held_out(self) -> Series:
        """The share of right answers in the validations. Their mean reward is the series "held_out_score"."""
        return self["held_out"]


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean. For infinite or huge values it is infinite or NaN, where statistics.fmean
    would raise an error."""
    return sum(values) / len(values)


def _as_float(value: float) -> float:
    """Return a number as a float; a whole number that is too large for one as infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, 1 if value > 0 else -1)


def _held_out(metrics: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield the names and values of our own series of a validation, which are means over its data
    sources."""
    for series, ends in _HELD_OUT.items():
        candidates = ([value for name, value in metrics.items() if is_held_out(name, end)] for end in ends)
        values = next(filter(None, candidates), [])
        if values and not any(map(math.isnan, values)):
            yield series, mean(values)


def is_held_out(name: str, end: str) -> bool:
    """Return whether the metric `name` ends in `end` and belongs to a validation's questions, without those
    that are played under a probe."""
    return name.startswith("val-") and name.endswith(end) and "/probe_" not in name


def best_window(series: Series, window: int) -> tuple[float, int]:
    """Return the highest mean of `window` consecutive values before the last `window` ones, and the index of
    the last value in it. Raises ValueError if the series has fewer than twice `window` values."""
    means = series.windows(window)
    index = max(range(len(means)), key=lambda i: means[i])
    return means[index], index + window - 1


def at_steps(series: Series, steps: Sequence[int]) -> list[float]:
    """Return the values of a series at those of the `steps` at which it has one."""
    values = dict(zip(series.steps, series.values, strict=True))
    return [values[step] for step in steps if step in values]
