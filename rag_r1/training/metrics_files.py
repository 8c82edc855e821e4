"""Finds the files of veRL's logger `file`, and follows them while veRL writes them.

Each start of a training has a separate file (`metrics_file`), with a line `{"step", "data"}` for each step.
Each line is read once, when it is complete. A line that cannot be parsed is not veRL's, and is skipped. veRL
writes `null` for a number that is NaN or infinite (`FileLogger` encodes with orjson), and it is read as NaN.

The metrics that are known when the batch of a step is complete are in a second file earlier than that
(runs/rollout_metrics.py). `StartMetrics` follows both files.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rag_r1.options.arguments.overrides import hydra_quoted
from rag_r1.options.problems import plain
from rag_r1.runs.rollout_metrics import FILE_VARIABLE, METRICS, rollouts_file

#: The line of a step has some hundred numbers. A longer line is not veRL's.
_MAX_LINE_BYTES = 1 << 20
#: The key for environment variables of Ray's processes, in which veRL's trainer runs.
RAY_VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"
#: Variables that say where veRL's logger writes: the file, or the folder of all projects.
_LOG_VARIABLES = (FILE_VARIABLE, "VERL_FILE_LOGGER_ROOT")
#: A step and its metrics.
Line = tuple[int, dict[str, Any]]


class MetricsFile:
    """Follows one file, which may not exist yet."""

    def __init__(self, path: Path):
        self.path = path
        self._position = 0

    def new_lines(self) -> Iterator[Line]:
        """Yield the step and the metrics of each line that was completed since the last call. A metric may
        be NaN."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                while line := file.readline(_MAX_LINE_BYTES):
                    if not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
                        return  # it is still being written
                    self._position = file.tell()
                    if (entry := _parsed(line)) is not None:
                        yield entry
        except FileNotFoundError:
            return


class StepMetrics(NamedTuple):
    """Metrics of a step, from either file of a start."""

    step: int
    metrics: dict[str, Any]
    #: Whether these are all metrics that veRL logs, and not only those of the complete batch.
    is_whole: bool = True


class StartMetrics:
    """Follows both files of one start of a training. `path` is the file that veRL writes."""

    def __init__(self, path: Path):
        self.path = path
        self._steps, self._rollouts = MetricsFile(path), MetricsFile(rollouts_file(path))

    def new_lines(self) -> Iterator[StepMetrics]:
        """Yield the metrics written since the last call, first those of whole steps and then those of
        batches, which may belong to the same steps."""
        for step, metrics in self._steps.new_lines():
            yield StepMetrics(step, metrics)
        for step, metrics in self._rollouts.new_lines():
            yield StepMetrics(step, metrics, is_whole=False)


def _parsed(line: bytes) -> Line | None:
    """Return the step and the metrics of a line; None if the line is not veRL's."""
    try:
        entry = json.loads(line)
        step, metrics = entry["step"], entry["data"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(step, int) or not isinstance(metrics, dict):
        return None
    return step, {name: math.nan if value is None else value for name, value in metrics.items()}


def next_metrics_file(folder: Path) -> Path:
    """Return the file for the next start in a run's folder."""
    numbers = [int(path.stem.rpartition("-")[2]) for path in earlier_files(folder)]
    return folder / f"{METRICS}{max(numbers, default=0) + 1}.jsonl"


def earlier_files(folder: Path) -> list[Path]:
    """Return the files of all starts in a run's folder, in order: metrics-1.jsonl, metrics-2.jsonl, ..."""
    numbered = [(path.stem.rpartition("-")[2], path) for path in folder.glob(f"{METRICS}*.jsonl")]
    return [path for _, path in sorted((int(n), path) for n, path in numbered if n.isdecimal())]


def metrics_file(config: Any) -> Path | None:
    """Return the file in the run's folder for veRL's logger `file` at the next start.

    veRL empties its file at each start, so each start gets a new one: metrics-1.jsonl, metrics-2.jsonl, ...
    Returns None if the logger is off, or if the user has named a file.
    """
    if not logs_to_file(config) or log_variable(config):
        return None
    return next_metrics_file(Path(config.trainer.default_local_dir).expanduser().absolute())


def logs_to_file(config: Any) -> bool:
    """Return whether veRL's logger `file` is on."""
    logger = plain(config.trainer.logger)
    return "file" in (logger if isinstance(logger, list) else [logger])


def log_variable(config: Any) -> str | None:
    """Return the variable by which the user has named the file or the folder of all projects; None if there
    is none."""
    from omegaconf import OmegaConf

    ray_variables = OmegaConf.select(config, RAY_VARIABLES) or {}
    return next((name for name in _LOG_VARIABLES if name in os.environ or name in ray_variables), None)


def metrics_override(path: Path) -> str:
    """Create the folder of `path`, and return the override that makes veRL write its metrics to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"++{RAY_VARIABLES}.{FILE_VARIABLE}={hydra_quoted(path)}"
