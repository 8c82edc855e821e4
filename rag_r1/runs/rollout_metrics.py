"""Names the files of a training's metrics: those of veRL's logger, and the rollout metrics beside them.

veRL logs a step only after its update and validation. A policy that breaks down shows this earlier, in its
answers. So our trainers (plugin/recording_trainer.py) write the metrics of the rollouts as soon as a batch is
complete, to rollouts-1.jsonl beside metrics-1.jsonl, in lines of the same format. The guard follows both
files (training/metrics_files.py).
"""

from __future__ import annotations

import os
from pathlib import Path

#: veRL's environment variable for the path of its logger's file.
FILE_VARIABLE = "VERL_FILE_LOGGER_PATH"
#: The prefix of that file's name, if it was chosen by a command of this project.
METRICS = "metrics-"


def rollouts_file(metrics: Path) -> Path:
    """Return the file for rollout metrics that belongs to a file of veRL's logger."""
    return metrics.with_name(f"rollouts-{metrics.name.removeprefix(METRICS)}")


def rollouts_file_here() -> Path | None:
    """Return the file for the rollout metrics of this process; None if its logger has no file named by this
    project."""
    metrics = Path(os.environ.get(FILE_VARIABLE, ""))
    return rollouts_file(metrics) if metrics.name.startswith(METRICS) else None


def logger_files(run: Path) -> list[Path]:
    """Return the files of veRL's logger in a run's folder, the one that was written last at the end."""

    def write_time(path: Path) -> int:
        try:
            return path.stat().st_mtime_ns
        except OSError:  # removed meanwhile
            return 0

    return sorted(run.glob("metrics*.jsonl"), key=write_time)
