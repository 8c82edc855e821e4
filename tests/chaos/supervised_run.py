"""A real training by `rag-r1 train --supervise` in a process of its own, to be looked at and killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from rag_r1.demo.policy import policy_path
from rag_r1.training.guard.attempts import Attempt, Attempts
from tests.e2e.demo_training import ROOT, SMALL, hydra
from tests.e2e.left_behind import step_metrics

STEPS, WAIT_S = 4, 900.0


class SupervisedRun:
    """The demo's training in `folder`/run, with a checkpoint in each of its four small steps. `start` begins
    it, and goes on with it. `has_steps_in_parts`: a step is an update for each of several batches."""

    def __init__(self, folder: Path, data: Path, url: str, overrides: Sequence[str] = ()):
        self.folder, self.log = folder / "run", folder.parent / f"{folder.name}.log"
        self.has_steps_in_parts = any("parameter_sync_step=" in override for override in overrides)
        changes = [
            *(override for override in SMALL if "external_lib" not in override),
            f"data.train_files={hydra(str(data / 'train.parquet'))}",
            f"data.val_files={hydra(str(data / 'val.parquet'))}",
            f"actor_rollout_ref.model.path={hydra(str(policy_path('rag_r1_mq')))}",
            f"rag_r1.retriever.url={url}",
            f"trainer.default_local_dir={hydra(str(self.folder))}",
            f"trainer.total_training_steps={STEPS}",
            "trainer.save_freq=1",
            "trainer.resume_mode=auto",
            *overrides,
        ]
        self._command = [sys.executable, "-m", "rag_r1.cli", "train", "--recipe", "demo/grpo", "--supervise"]
        self._command += changes
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                self._command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": path}
            )

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Raises AssertionError if the training ends before, or takes too long."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, self.text()[-3000:]
            time.sleep(0.2)

    def wait(self) -> int:
        """The exit status."""
        return self.process.wait(WAIT_S)

    def send(self, number: int, name: str) -> None:
        """Send a signal to the first process of the training whose title begins with `name`."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        named = [child for child in children if _title(child).startswith(name)]
        assert named, f"there is no process {name}"
        named[0].send_signal(number)

    def kill(self) -> None:
        """End the supervisor, if it runs."""
        if self.process is not None:
            self.process.kill()

    @property
    def logged(self) -> set[int]:
        """The steps that any attempt has logged."""
        return set().union(*(step_metrics(path) for path in self.folder.glob("metrics-*.jsonl")))

    def attempts(self) -> list[Attempt]:
        return Attempts(self.folder).all

    def text(self) -> str:
        """What the last start has printed."""
        return self.log.read_text(errors="replace")


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
