"""The files of veRL's logger `file`: where they are, and their lines while veRL writes them.

A line is `{"step", "data"}`, and each start of a training has a file of its own (`metrics_file`). Lines are
read once and whole; one that cannot be read is skipped, since veRL has not written it.

What is known of a step when its batch is complete stands in a second file before that
(runs/rollout_metrics.py). `StartMetrics` follows both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rag_r1.options.command_line import hydra_quoted
from rag_r1.runs.rollout_metrics import FILE_VARIABLE, METRICS, rollouts_file

#: A line of a step has some hundred numbers; a longer one is not veRL's.
_MAX_LINE_BYTES = 1 << 20
#: The environment of Ray's processes, in which veRL's trainer runs.
RAY_VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"
#: Where the logger writes: the file itself, or the folder of all projects.
_LOG_VARIABLES = (FILE_VARIABLE, "VERL_FILE_LOGGER_ROOT")
Line = tuple[int, dict[str, Any]]


class MetricsFile:
    """Follows one file, which need not exist yet."""

    def __init__(self, path: Path):
        self.path = path
        self._position = 0

    def new_lines(self) -> Iterator[Line]:
        """Yields step and metrics of the lines that were finished since the last call. A metric may be
        NaN."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                while (line := file.readline(_MAX_LINE_BYTES)).endswith(b"\n"):
                    self._position = file.tell()
                    if (entry := _parsed(line)) is not None:
                        yield entry
        except FileNotFoundError:
            return


class StepMetrics(NamedTuple):
    """Metrics of a step; `is_whole`: all that veRL logs, not only what is known of a complete batch."""

    step: int
    metrics: dict[str, Any]
    is_whole: bool = True


class StartMetrics:
    """Follows both files of one start of a training; `path` is the one that veRL writes."""

    def __init__(self, path: Path):
        self.path = path
        self._steps, self._rollouts = MetricsFile(path), MetricsFile(rollouts_file(path))

    def new_lines(self) -> Iterator[StepMetrics]:
        """Yields what was written since the last call: whole steps, then batches, also those of these
        steps."""
        for step, metrics in self._steps.new_lines():
            yield StepMetrics(step, metrics)
        for step, metrics in self._rollouts.new_lines():
            yield StepMetrics(step, metrics, is_whole=False)


def _parsed(line: bytes) -> Line | None:
    """Step and metrics of a line; None if it is not one of veRL's."""
    try:
        entry = json.loads(line)
        step, metrics = entry["step"], entry["data"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return (step, metrics) if isinstance(step, int) and isinstance(metrics, dict) else None


def next_metrics_file(folder: Path) -> Path:
    """The file of the next start in a run's folder."""
    numbers = [int(path.stem.rpartition("-")[2]) for path in earlier_files(folder)]
    return folder / f"{METRICS}{max(numbers, default=0) + 1}.jsonl"


def earlier_files(folder: Path) -> list[Path]:
    """The files of all starts in a run's folder, in order: metrics-1.jsonl, metrics-2.jsonl, ..."""
    numbered = [(path.stem.rpartition("-")[2], path) for path in folder.glob(f"{METRICS}*.jsonl")]
    return [path for _, path in sorted((int(n), path) for n, path in numbered if n.isdecimal())]


def metrics_file(config: Any) -> Path | None:
    """The file of veRL's logger `file` at the next start, in the run's folder. veRL empties its file at each
    start, so each start gets one of its own: metrics-1.jsonl, metrics-2.jsonl, ... None without that logger,
    and if the user has named a file."""
    if not logs_to_file(config) or log_variable(config):
        return None
    return next_metrics_file(Path(config.trainer.default_local_dir).expanduser().absolute())


def logs_to_file(config: Any) -> bool:
    """Whether veRL's logger `file` is on."""
    logger = config.trainer.logger
    return "file" in ([logger] if isinstance(logger, str) else logger or ())


def log_variable(config: Any) -> str | None:
    """The variable with which the user has named the file, or the folder of all projects; None without
    one."""
    from omegaconf import OmegaConf

    ray_variables = OmegaConf.select(config, RAY_VARIABLES) or {}
    return next((name for name in _LOG_VARIABLES if name in os.environ or name in ray_variables), None)


def metrics_override(path: Path) -> str:
    """Returns the override that makes veRL write its metrics to `path`, and makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"++{RAY_VARIABLES}.{FILE_VARIABLE}={hydra_quoted(path)}"
