"""What is known of a training's step when its batch is complete, in a file beside that of veRL's logger.

veRL logs a step at its end, after the update and the validation. A policy that broke down shows in its
answers, before both; so our trainers (plugin/recording_trainer.py) write what is known then to
rollouts-1.jsonl beside metrics-1.jsonl, in lines of the same form, and the guard follows both
(training/metrics_files.py).
"""

from __future__ import annotations

import os
from pathlib import Path

#: veRL's variable with the file of its logger `file`.
FILE_VARIABLE = "VERL_FILE_LOGGER_PATH"
#: How the name of that file begins where we have named it.
METRICS = "metrics-"


def rollouts_file(metrics: Path) -> Path:
    """The file beside that of veRL's logger."""
    return metrics.with_name(f"rollouts-{metrics.name.removeprefix(METRICS)}")


def rollouts_file_here() -> Path | None:
    """The file beside that of veRL's logger in this process; None if that has none of which we know."""
    metrics = Path(os.environ.get(FILE_VARIABLE, ""))
    return rollouts_file(metrics) if metrics.name.startswith(METRICS) else None
