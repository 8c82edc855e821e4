"""Runs a training's command as a child process, and shows its progress from veRL's file of metrics.

The commands that train as one of several steps, such as `rag-r1 demo`, use this. On a terminal the progress
is a bar, and in a file or a pipe it is a line per step. veRL's own output goes into a log file.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tqdm import tqdm

from rag_r1.runs.errors import RunError
from rag_r1.runs.processes import stop_session
from rag_r1.runs.rollout_metrics import FILE_VARIABLE
from rag_r1.system.child_processes import last_lines, start
from rag_r1.system.concurrent_trainings import warn_of_other_trainings
from rag_r1.training.guard.history import is_held_out
from rag_r1.training.metrics_files import MetricsFile


def train(command: Sequence[str], out: Path, timeout_s: float = math.inf) -> None:
    """Run a training of veRL and show its progress. Writes `train.log` and `metrics.jsonl` into `out`.
    Raises RunError if the training fails or takes longer than `timeout_s`, and OSError if it cannot be
    started or its log cannot be written."""
    metrics, log = out / "metrics.jsonl", out / "train.log"
    metrics.unlink(missing_ok=True)
    environment = {**os.environ, FILE_VARIABLE: str(metrics), "HYDRA_FULL_ERROR": "1"}
    warn_of_other_trainings()
    # Without the address veRL starts a separate cluster, which it needs: its actors' names are global to a
    # cluster.
    environment.pop("RAY_ADDRESS", None)
    with log.open("w") as output:
        # The process inherits the lock that `rag-r1 stages` holds on the folder.
        process = start(command, output, environment, inherits_files=True)
        try:
            _watch(process, metrics, timeout_s)
        finally:
            stop_session(process)
    if process.returncode:
        raise RunError(
            f"the training ended with status {process.returncode}: correct the cause; the end of {log}:\n"
            f"{last_lines(log)}"
        )


def _watch(process: subprocess.Popen, metrics: Path, timeout_s: float) -> None:
    """Show new lines of the file of metrics until the process ends. Raises RunError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    follower = MetricsFile(metrics)
    # `disable=None` shows the bar on a terminal only; otherwise `_show` prints lines.
    with tqdm(
        desc="starting up (one to two minutes)", bar_format="{desc} {elapsed}{postfix}", disable=None
    ) as bar:
        while True:
            is_over = process.poll() is not None  # before its lines are read, so that none is missed
            for step, values in follower.new_lines():
                _show(bar, step, values)
            bar.refresh()
            if is_over:
                return
            if time.monotonic() > deadline:
                raise RunError(f"the training took longer than {timeout_s:.0f} s and was stopped")
            time.sleep(0.5)


def _show(bar: tqdm, step: int, metrics: dict[str, Any]) -> None:
    """Show the figures in the metrics of a step: those of a validation in a line, and those of the training
    in the bar or, if it is disabled, in a line."""
    if held_out := [value for key, value in metrics.items() if is_held_out(key, "/em/mean@1")]:
        bar.write(f"  step {step:>3}  held-out exact match {fmean(held_out):.2f}")
    if "search/score" in metrics:
        score, searches = metrics["search/score"], metrics["search/searches"]
        progress = f"reward {score:.2f}, {searches:.1f} searches per question"
        bar.set_description_str(f"step {step}")
        bar.set_postfix_str(progress)
        if bar.disable:
            print(f"  step {step:>3}  {progress}", flush=True)
