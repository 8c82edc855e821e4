"""Names the file of a training step's rollout metrics, beside that of veRL's logger.

veRL logs a step at its end, after the update and the validation. A policy that broke down shows in its
answers, before both; so our trainers (plugin/recording_trainer.py) write the metrics of the rollouts as soon
as the batch is complete to rollouts-1.jsonl beside metrics-1.jsonl, in lines of the same form, and the guard
follows both (training/metrics_files.py).
"""

from __future__ import annotations

import os
from pathlib import Path

#: veRL's environment variable with the path of its logger's file.
FILE_VARIABLE = "VERL_FILE_LOGGER_PATH"
#: The beginning of that file's name, if a command of ours has named it.
METRICS = "metrics-"


def rollouts_file(metrics: Path) -> Path:
    """Returns the file of rollout metrics that belongs to a file of veRL's logger."""
    return metrics.with_name(f"rollouts-{metrics.name.removeprefix(METRICS)}")


def rollouts_file_here() -> Path | None:
    """Returns the file of rollout metrics of this process; None if veRL's logger has no file of ours."""
    metrics = Path(os.environ.get(FILE_VARIABLE, ""))
    return rollouts_file(metrics) if metrics.name.startswith(METRICS) else None
