"""The expected band of a recipe: the range of each signal, step by step, in runs that went well.

A band is a file beside its recipe (grpo.band.json beside demo/grpo.yaml), measured with the unchanged recipe,
its model and its data. `rag-r1 train` compares a run with the band, and says at the end whether the run went
as expected, or which signals left the band and when. With other data, another model or another learning rate
a run may well leave the band; this is only reported, and has no consequences.

    python -m rag_r1.training.guard.bands --runs RUN RUN ... --out grpo.band.json

makes a band from finished runs with different seeds. At each step it is the mean over the seeds, plus and
minus five standard deviations. The variance is averaged over the step, the two steps before and the two after
it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from rag_r1.config.recipes import Recipe
from rag_r1.io.atomic_files import write_text
from rag_r1.io.bounded_json import read_json_object
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.runs.errors import RunError
from rag_r1.training.guard.history import History, Series, at_steps
from rag_r1.training.metrics_files import MetricsFile, earlier_files

#: Half the width of a band, in standard deviations.
_DEVIATIONS = 5.0
#: The smallest standard deviation that is assumed, as a share of the mean.
_MIN_DEVIATION = 0.02
#: The variance of a step is averaged over so many steps before and after it.
_REACH = 2
#: The fewest runs from which a band is made: the variance of two says little.
_MIN_RUNS = 3
#: The signals of a band. `right` and `held_out` are shares of right answers (history.py), the others metrics.
SIGNALS = (
    "right",
    "held_out",
    "search/searches",
    "search/valid_actions",
    "search/logprob_thought",
    "response_length/mean",
)


@dataclass
class BandCheck:
    """Compares a run with a band step by step."""

    #: The band: signal -> step -> (low, high).
    signals: Mapping[str, Mapping[int, tuple[float, float]]]
    history: History = field(default_factory=History)
    #: Signal -> (step, value) where it first left the band.
    exits: dict[str, tuple[int, float]] = field(default_factory=dict)
    #: The signals that were compared, each with its step.
    compared: set[tuple[str, int]] = field(default_factory=set)

    @classmethod
    def of_recipe(cls, recipe: Recipe) -> BandCheck | None:
        """Return a check against the band beside a recipe; None if there is none. Raises RunError if the
        file is not a band."""
        path = recipe.path.with_suffix(".band.json")
        return cls(read_band(path)) if path.is_file() else None

    @classmethod
    def summary_of_run(cls, recipe: Recipe, metrics: Path) -> str:
        """Return the summary of a finished run of a recipe, from its file of metrics; empty if the recipe
        has no band."""
        if (check := cls.of_recipe(recipe)) is None:
            return ""
        for line in MetricsFile(metrics).new_lines():
            check.see(*line)
        return check.summary()

    def see(self, step: int, metrics: Mapping[str, Any]) -> list[str]:
        """Add the metrics of a step. Returns a sentence for each signal that leaves the band for the first
        time."""
        self.history.add(step, metrics)
        sentences = []
        for name, band in self.signals.items():
            series = _series(self.history, name)
            if step not in band or series.steps[-1:] != [step]:
                continue
            self.compared.add((name, step))
            (low, high), value = band[step], series.values[-1]
            if not low <= value <= high and name not in self.exits:
                self.exits[name] = (step, value)
                sentences.append(f"step {step}: {name} is {value:.3f}, expected {low:.3f} to {high:.3f}")
        return sentences

    def summary(self) -> str:
        """Return a sentence on how the run went; empty if nothing could be compared."""
        if not self.compared:
            return ""
        signals, steps = map(set, zip(*self.compared, strict=True))
        extent = f"{len(signals)} signals at {len(steps)} steps"
        if not self.exits:
            return f"as expected: {extent} are in the band of this recipe"
        names = ", ".join(f"{name} (step {step})" for name, (step, _) in self.exits.items())
        return f"not as expected: of {extent}, these left the band of this recipe: {names}"


def make_band(histories: Sequence[History]) -> dict[str, dict[str, list[float]]]:
    """Return the band of finished runs, signal -> step -> [low, high]. Raises RunError for fewer than three
    runs."""
    if len(histories) < _MIN_RUNS:
        raise RunError("a band needs three runs or more, of different seeds: name them with --runs")
    bands = {name: _signal_band([_series(history, name) for history in histories]) for name in SIGNALS}
    return {name: band for name, band in bands.items() if band}


def _signal_band(runs: Sequence[Series]) -> dict[str, list[float]]:
    """Return the band of one signal at the steps at which all runs have a finite value."""
    pairs = (zip(run.steps, run.values, strict=True) for run in runs)
    measured = [{step for step, value in run if math.isfinite(value)} for run in pairs]
    steps = sorted(set.intersection(*measured))
    values = list(zip(*(at_steps(run, steps) for run in runs), strict=True))
    variances = [variance(step_values) for step_values in values]
    band = {}
    for i, (step, step_values) in enumerate(zip(steps, values, strict=True)):
        mean, mean_variance = fmean(step_values), fmean(variances[max(0, i - _REACH) : i + _REACH + 1])
        half_width = _DEVIATIONS * max(math.sqrt(mean_variance), _MIN_DEVIATION * abs(mean))
        band[str(step)] = [round(mean - half_width, 4), round(mean + half_width, 4)]
    return band


def read_band(path: Path) -> dict[str, dict[int, tuple[float, float]]]:
    """Read a band's file. Returns signal -> step -> (low, high). Raises RunError if the file is not a
    band."""
    try:
        signals = read_json_object(path)["signals"]
        return {
            name: {int(step): (float(low), float(high)) for step, (low, high) in band.items()}
            for name, band in signals.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise RunError(f"{path} is not a band ({error!r}): make it anew from finished runs") from error


def read_history(run: Path) -> History:
    """Read the metrics of a finished run from the files of all its starts or, for a run whose progress was
    shown (progress.py), from its `metrics.jsonl`. Raises RunError if there are none."""
    history = History()
    for path in earlier_files(run) or [run / "metrics.jsonl"]:
        for step, metrics in MetricsFile(path).new_lines():
            history.add(step, metrics)
    if history.step < 0:
        raise RunError(f"{run} has no metrics*.jsonl with steps: train with trainer.logger=[console,file]")
    return history


def _series(history: History, name: str) -> Series:
    """Return the series of a signal. Which of veRL's metrics `right` is depends on the kind of run."""
    return history.right if name == "right" else history[name]


class BandArguments(Arguments):
    """Arguments of the module as a command."""

    runs: list[Path] = argument("folders of finished runs of one recipe, a seed each", ("RUN", ...))
    out: Path = argument("the band's file: that of my.yaml is my.band.json", "FILE")
    made: str = argument("machine and date, for those who read the file", "TEXT", default="")


@command_main(RunError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the band of the named runs. Returns 0."""
    args = read_arguments(
        BandArguments, arguments, prog="python -m rag_r1.training.guard.bands", description=__doc__
    )
    band = make_band([read_history(run) for run in args.runs])
    # One line per signal, so that a new band is a readable change.
    signals = ",\n".join(f"  {json.dumps(name)}: {json.dumps(steps)}" for name, steps in band.items())
    header = json.dumps({"runs": len(args.runs), "made": args.made})[1:-1]
    write_text(args.out, f'{{{header}, "signals": {{\n{signals}\n}}}}\n')
    print(f"{args.out}: {len(band)} signals of {len(args.runs)} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
