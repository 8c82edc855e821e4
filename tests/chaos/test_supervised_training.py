"""A supervised training whose processes are killed ends with all its steps, as an undisturbed one does.

One real training of four steps by `rag-r1 train --supervise` in each trainer mode, the asynchronous ones in
the nightly tier. After its first checkpoint the worker that holds the weights is killed, after the second one
veRL's trainer itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from rag_r1.demo.policy import policy_path
from rag_r1.runs.processes import find_leftovers
from rag_r1.runs.rollout_metrics import rollouts_file
from rag_r1.training.guard.attempts import Attempt, Attempts
from rag_r1.training.time_limit import last_checkpoint
from tests.chaos.test_async_trainers import MODES as ASYNC_MODES
from tests.e2e.demo_training import QUESTIONS, ROOT, SMALL, hydra
from tests.e2e.left_behind import step_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

STEPS, WAIT_S = 4, 900.0


@dataclass
class Supervised:
    """What the training has left behind."""

    folder: Path
    status: int
    log: str
    attempts: list[Attempt]


_ASYNC = ("trainer.v1.sampler.custom_sampler.name=SearchReplayBufferAsync",)
MODES = {
    "sync": (),
    "colocate_async": ("trainer.v1.trainer_mode=search_colocate_async", *_ASYNC),
    "separate_async": (
        "trainer.v1.trainer_mode=search_separate_async",
        *_ASYNC,
        "algorithm.rollout_correction.bypass_mode=false",
        *(override for override in ASYNC_MODES["separate_async"] if "trainer_mode" not in override),
    ),
}
_MARKS = {"sync": pytest.mark.full}


@pytest.fixture(
    scope="module",
    params=[pytest.param(mode, marks=_MARKS.get(mode, pytest.mark.nightly)) for mode in MODES],
)
def supervised(request, demo_index, make_module_server, tmp_path_factory) -> Supervised:
    """The finished training."""
    folder = tmp_path_factory.mktemp("supervised")
    server, log = make_module_server(), folder / "log"
    overrides = [
        *(override for override in SMALL if "external_lib" not in override),
        f"data.train_files={hydra(str(demo_index / 'data' / 'train.parquet'))}",
        f"data.val_files={hydra(str(demo_index / 'data' / 'val.parquet'))}",
        f"actor_rollout_ref.model.path={hydra(str(policy_path('rag_r1_mq')))}",
        f"rag_r1.retriever.url={server.url}",
        f"trainer.default_local_dir={hydra(str(folder / 'run'))}",
        f"trainer.total_training_steps={STEPS}",
        "trainer.save_freq=1",
        "trainer.resume_mode=auto",
        *MODES[request.param],
    ]
    command = [
        sys.executable,
        "-m",
        "rag_r1.cli",
        "train",
        "--recipe",
        "demo/grpo",
        "--supervise",
        *overrides,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            for step, name in ((1, "ray::WorkerDict"), (2, "ray::TaskRunner")):
                _wait(lambda step=step: (last_checkpoint(folder / "run") or 0) >= step, process, log)
                _kill(process.pid, name)
                _wait(lambda step=step: len(_attempts(folder)) > step, process, log)
            status = process.wait(WAIT_S)
        finally:
            process.kill()
    return Supervised(folder / "run", status, log.read_text(errors="replace"), _attempts(folder))


def _attempts(folder: Path) -> list[Attempt]:
    return Attempts(folder / "run").all


def _wait(until: Callable[[], bool], process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while not until():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
        time.sleep(0.2)


def _kill(parent: int, name: str) -> None:
    named = [
        child for child in psutil.Process(parent).children(recursive=True) if _title(child).startswith(name)
    ]
    assert named, f"there is no process {name}"
    named[0].send_signal(signal.SIGKILL)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def test_it_ends_with_all_steps_and_a_checkpoint_of_the_last(supervised):
    assert supervised.status == 0, supervised.log[-3000:]
    steps = set().union(*(step_metrics(path) for path in supervised.folder.glob("metrics-*.jsonl")))
    assert steps >= set(range(1, STEPS + 1)) and last_checkpoint(supervised.folder) == STEPS


def test_each_attempt_goes_on_from_the_last_checkpoint_of_the_one_before(supervised):
    first, second, third = supervised.attempts
    assert (first.first, third.ending) == (0, "finished") and 1 <= second.first <= third.first < STEPS
    assert all("ended with status" in attempt.ending for attempt in (first, second))
    assert not any(attempt.changes for attempt in supervised.attempts)


def test_no_process_of_a_killed_attempt_is_left(supervised):
    assert find_leftovers(supervised.folder) == []


def test_each_batch_was_written_before_its_step_with_what_the_step_then_says(supervised):
    for path in supervised.folder.glob("metrics-*.jsonl"):
        batches, logged = step_metrics(rollouts_file(path)), step_metrics(path)
        assert set(batches) >= set(logged) - {0}
        for step in set(batches) & set(logged):
            assert batches[step]["search/score"] == logged[step]["search/score"]


def test_every_step_is_trained_on_as_many_questions_as_an_undisturbed_one(supervised):
    for path in supervised.folder.glob("metrics-*.jsonl"):
        for metrics in step_metrics(path).values():
            assert metrics["search/samples"] % QUESTIONS == 0 and metrics["search/lost"] == 0
