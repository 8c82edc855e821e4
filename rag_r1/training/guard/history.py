"""The metrics of a training so far, as series over its steps.

`History.add` takes a line of veRL's metrics as it is. A step that was trained again replaces what was known
of it and of all later ones, so that a run that was killed or rolled back has one value for a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

#: Our names for the figures of a validation, without the probes' questions, and those of a source in veRL's
#: metrics, the best one first.
_HELD_OUT = {"held_out": ("/right/mean@1", "/em/mean@1"), "held_out_score": ("/score/mean@1",)}
#: Names of the share of right answers in a step's metrics, the best one first. A run of an earlier version
#: has no `right`, and one without golds has only its reward.
_SHARES = ("search/right", "search/em")
#: Differences of neighbouring steps for which the largest possible deviation counts.
_PRIOR_DIFFERENCES = 8


@dataclass
class Series:
    """A metric by step, in order."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)

    def recent(self, window: int) -> float:
        """The mean of the last `window` values."""
        return fmean(self.values[-window:])

    def windows(self, window: int) -> list[float]:
        """The means of all `window` values in a row that are not part of the last ones."""
        values = self.values[:-window]
        return [fmean(values[i : i + window]) for i in range(len(values) - window + 1)]

    def differences(self) -> list[float]:
        """The absolute differences of neighbouring values."""
        return [abs(b - a) for a, b in zip(self.values, self.values[1:], strict=False)]

    def since(self, window: int) -> int:
        """The first step of the last `window` values."""
        return self.steps[-min(window, len(self))]


class History:
    """The series of a run by metric, up to its last `step`, -1 before the first. `questions`: how many a step
    has, if they are drawn at random."""

    def __init__(self, questions: int | None = None) -> None:
        self.questions = questions
        self.step = -1
        self._series: dict[str, Series] = {}

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Adds the metrics of a step, as veRL logged them; what is not a number is left out."""
        if step <= self.step:
            self.back_to(step - 1)
        self.step = step
        numbers = {
            name: float(value)
            for name, value in metrics.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        for name, value in [*numbers.items(), *_held_out(numbers)]:
            series = self._series.setdefault(name, Series())
            series.steps.append(step)
            series.values.append(value)

    def back_to(self, step: int) -> None:
        """Forgets all steps after this one."""
        for series in self._series.values():
            count = sum(past_step <= step for past_step in series.steps)
            del series.steps[count:], series.values[count:]
        self.step = min(self.step, step)

    def __getitem__(self, name: str) -> Series:
        """The series of a metric; an empty one if it was never logged."""
        return self._series.get(name, Series())

    def now(self, name: str) -> float | None:
        """The value of a metric in the last step; None if it was not logged there."""
        series = self[name]
        return series.values[-1] if series.steps[-1:] == [self.step] else None

    @property
    def right(self) -> Series:
        """The share of right answers in training; without it, the reward."""
        return self._shares if len(self._shares) else self["search/score"]

    @property
    def _shares(self) -> Series:
        return next((self[name] for name in _SHARES if len(self[name])), Series())

    def right_deviation(self, share: float) -> float:
        """The standard deviation of a step's right answers around a mean of `share`. It is measured by the
        differences of neighbouring steps, without the largest, of which one may be the fall that is judged.
        Few say little, and in the first steps a fast training looks like noise; so what the deviation can be
        at most counts as `_PRIOR_DIFFERENCES` further ones: that of questions whose answers are all right or
        all wrong, or, if questions are not drawn at random, the largest difference before the last."""
        changes = self.right.differences()
        sorted_changes = sorted(changes)
        usual_changes = sorted_changes[: len(sorted_changes) - len(sorted_changes) // 10 - 1]
        maximum = max(changes[:-1], default=1.0) / math.sqrt(2)
        if self.questions is not None and len(self._shares):
            maximum = math.sqrt(max(0.0, share * (1 - share)) / self.questions)
        # Of a normal distribution the mean of |difference| is 1.13 deviations, and .9 without the largest.
        measured = min(fmean(usual_changes) / 0.9, maximum) if usual_changes else maximum
        count = len(sorted_changes)
        weighted_maximum = math.sqrt(_PRIOR_DIFFERENCES) * maximum
        return math.hypot(weighted_maximum, math.sqrt(count) * measured) / math.sqrt(
            _PRIOR_DIFFERENCES + count
        )

    @property
    def held_out(self) -> Series:
        """The share of right answers of the validations; "held_out_score" is their mean reward."""
        return self["held_out"]


def _held_out(metrics: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yields name and value of our own series of a validation: means over its data sources."""
    for series, ends in _HELD_OUT.items():
        candidates = ([value for name, value in metrics.items() if is_held_out(name, end)] for end in ends)
        values = next(filter(None, candidates), [])
        if values and not any(map(math.isnan, values)):
            yield series, fmean(values)


def is_held_out(name: str, end: str) -> bool:
    """Whether a metric of this ending is of a validation's own questions, not of a probe's."""
    return name.startswith("val-") and name.endswith(end) and "/probe_" not in name


def best_window(series: Series, window: int) -> tuple[float, int]:
    """The highest mean of `window` values that are not part of the last ones, and the index of the last value
    in it. Raises ValueError if there are fewer than twice as many values."""
    means = series.windows(window)
    index = max(range(len(means)), key=lambda i: means[i])
    return means[index], index + window - 1


def at_steps(series: Series, steps: Sequence[int]) -> list[float]:
    """The values of a series at some steps, as far as it has them."""
    values = dict(zip(series.steps, series.values, strict=True))
    return [values[step] for step in steps if step in values]
