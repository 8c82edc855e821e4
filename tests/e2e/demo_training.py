"""A real training of the demo's policy in a process of its own, which can be looked at and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from rag_r1.config.recipes import Recipe
from rag_r1.demo.policy import policy_path
from tests.e2e.left_behind import step_metrics

ROOT = Path(__file__).resolve().parents[2]

QUESTIONS, GROUP = 4, 8
#: Small steps, no validation, and the engine that writes down what the actor is trained on.
SMALL = (
    f"data.train_batch_size={QUESTIONS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={QUESTIONS}",
    f"actor_rollout_ref.rollout.n={GROUP}",
    "actor_rollout_ref.model.external_lib=tests.e2e.recording_engine",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "data.val_max_samples=4",
)


class Training:
    """One run of `verl.trainer.main_ppo` with recipes/demo/grpo.yaml. Several with the same `out` share
    checkpoints and trajectories; `name` keeps their logs and metrics apart."""

    def __init__(
        self, out: Path, name: str, data: Path, url: str, overrides: Sequence[str], **environment: str
    ):
        self.out, self.log, self.metrics = out, out / f"{name}.log", out / f"{name}.jsonl"
        policy = policy_path("rag_r1_mq")
        changes = [
            *SMALL,
            f"data.train_files={data / 'train.parquet'}",
            f"data.val_files={data / 'val.parquet'}",
            f"actor_rollout_ref.model.path={policy}",
            f"rag_r1.retriever.url={url}",
            f"rag_r1.trajectory_dir={out / 'trajectories'}",
            f"trainer.default_local_dir={out / 'checkpoints'}",
            f"hydra.run.dir={out / 'hydra'}",
            *overrides,
        ]
        self._command = Recipe.find("demo/grpo").command(changes)
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._environment = {
            **os.environ,
            "PYTHONPATH": path,
            "VERL_FILE_LOGGER_PATH": str(self.metrics),
            "VERL_ENGINE_VENDOR": "recording",
            "RAG_R1_RECORD": str(out),
            "HYDRA_FULL_ERROR": "1",
            **environment,
        }
        self._environment.pop("RAY_ADDRESS", None)
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        with self.log.open("w") as output:
            self._process = subprocess.Popen(
                self._command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=ROOT,
                start_new_session=True,
            )

    def steps(self) -> dict[int, dict]:
        """The metrics of every step that is finished."""
        return step_metrics(self.metrics)

    def checkpoint(self) -> int:
        """The step of the last whole checkpoint; 0: none."""
        tracker = self.out / "checkpoints" / "latest_checkpointed_iteration.txt"
        return int(tracker.read_text() or 0) if tracker.exists() else 0

    def dumped(self, step: int) -> list[Path]:
        """The files with trajectories of a step."""
        return list((self.out / "trajectories" / "train").glob(f"step_{step:06d}-*.jsonl"))

    def wait(self, until: Callable[[], bool], timeout_s: float) -> None:
        """Until something is so. Raises if the training ends before, or the time is over."""
        deadline = time.monotonic() + timeout_s
        while not until():
            if self._process.poll() is not None:
                raise AssertionError(f"the training ended with {self._process.returncode}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"not reached within {timeout_s} s:\n{self.tail()}")
            time.sleep(0.05)

    def finish(self, timeout_s: float) -> int:
        """Wait for its end; its exit status."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not finished within {timeout_s} s:\n{self.tail()}") from None
        finally:
            self.stop()

    def kill(self, everything: bool) -> None:
        """SIGKILL to the driver, or to all of its processes at once, as when the machine is lost."""
        processes = self._processes()
        self._process.send_signal(signal.SIGKILL)
        if everything:
            _kill(processes)
        self._process.wait(30)
        psutil.wait_procs(processes, timeout=60)
        _kill(processes)  # what Ray has not cleaned up after the driver's death

    def stop(self) -> None:
        """Nothing of this training is left after it."""
        if self._process is not None and self._process.poll() is None:
            _kill(self._processes())
            self._process.kill()
            self._process.wait(30)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    def _processes(self) -> list[psutil.Process]:
        return psutil.Process(self._process.pid).children(recursive=True)


@contextmanager
def recording(out: Path, engine: str = "recording") -> Iterator[None]:
    """Trainings that are started in the block write into `out` what their actor is trained on. `engine`:
    `recording` (recording_engine.py), or `recording_updates` (recording_updates.py)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERL_ENGINE_VENDOR", engine)
        patch.setenv("RAG_R1_RECORD", str(out))
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        yield


def hydra(value: Any) -> str:
    """A value in the grammar of Hydra's overrides; texts are quoted, since paths may hold its signs."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {hydra(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(hydra, value)) + "]"
    return "'" + value.replace("'", "\\'") + "'" if isinstance(value, str) else json.dumps(value)


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=30)
