"""R1-Searcher's two stages through real veRL on this CPU, killed in the second and given again.

What they must have left behind stands in stage_checks.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rag_r1.demo.policy import POLICIES, make_policy, save_policy
from rag_r1.demo.r1_searcher_traces import NAME, no_search_tokenizer
from rag_r1.demo.world import demo_protocol, write_demo
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process
from tests.e2e import stage_checks
from tests.e2e.stage_checks import TwoStages

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(4000)]

QUESTIONS, GROUP = 4, 4
#: Two starts of veRL, each of several minutes on a busy machine.
AT_MOST_S = 1800
STEPS = {1: 1, 2: 3}
SMALL = (
    f"data.train_batch_size={QUESTIONS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={QUESTIONS}",
    f"actor_rollout_ref.rollout.n={GROUP}",
    "data.val_max_samples=4",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=1",
    *(f"stage{stage}:trainer.total_training_steps={steps}" for stage, steps in STEPS.items()),
)


@pytest.fixture(scope="module")
def overrides(tmp_path_factory):
    """A policy (untrained, if there is no committed one), a world and a running server."""
    folder = tmp_path_factory.mktemp("stages")
    policy = POLICIES / NAME
    if not (policy / "config.json").exists():
        policy = folder / "policy"
        tokenizer = no_search_tokenizer()
        save_policy(policy, make_policy(tokenizer, 0), tokenizer)
    write_demo(folder / "data", demo_protocol(NAME), seed=1)
    build_index(folder / "data" / "corpus.jsonl", folder / "index", "--backend", "bm25")
    with retrieval_process(folder / "index", folder / "server.log") as url:
        yield [
            f"data.train_files={folder / 'data' / 'train.parquet'}",
            f"data.val_files={folder / 'data' / 'val.parquet'}",
            f"actor_rollout_ref.model.path={policy}",
            f"rag_r1.retriever.url={url}",
            *SMALL,
        ]


class Stages:
    """`rag-r1 stages` in a process of its own."""

    def __init__(self, out: Path, name: str, overrides):
        self.log = out.parent / f"{name}.log"
        recipes = [part for i in STEPS for part in ("--recipe", f"recipes/demo/r1_stage{i}")]
        command = [sys.executable, "-m", "rag_r1.training.stages", "--out", str(out), *recipes, *overrides]
        left_out = ("RAY_ADDRESS", "VERL_FILE_LOGGER_PATH", "VERL_FILE_LOGGER_ROOT")
        environment = {k: v for k, v in os.environ.items() if k not in left_out}
        environment["PYTHONPATH"] = str(ROOT)
        out.parent.mkdir(exist_ok=True)
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=out.parent
            )

    def wait(self, until, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not until():
            ended = self.process.poll() is not None
            assert not ended and time.monotonic() < deadline, self.tail()
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL to the command and to everything that it has started."""
        everything = [*psutil.Process(self.process.pid).children(recursive=True), self.process]
        for process in everything:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(everything[:-1], timeout=60)
        self.process.wait(30)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])


def test_two_stages_killed_in_the_second_go_on_and_end_with_a_model_that_loads(overrides, tmp_path):
    out = tmp_path / "out"
    start = Path(next(o for o in overrides if "model.path=" in o).partition("=")[2])
    run = TwoStages(out, start, STEPS, QUESTIONS * GROUP)
    first = Stages(out, "first", overrides)
    try:
        first.wait(lambda: run.saved(2) >= 1, timeout_s=AT_MOST_S)
    finally:
        first.kill()
    stage_checks.the_first_stage_is_finished_and_the_second_is_not(run)
    finished_ns = run.finished(1).stat().st_mtime_ns
    run = replace(run, first_finished_ns=finished_ns, saved_before=run.saved(2))

    again = Stages(out, "again", overrides)
    try:
        assert again.process.wait(AT_MOST_S) == 0, again.tail()
    finally:
        if again.process.poll() is None:
            again.kill()
    for check in stage_checks.CHECKS:
        check(run)
    _each_start_has_logged_into_a_file_of_its_own(out, run.saved_before)


def _each_start_has_logged_into_a_file_of_its_own(out: Path, saved_before: int):
    """veRL's logger `file`, below the run's folder and nowhere else; no start has emptied another's. The
    second stage was killed once, after so many checkpoints and perhaps before the last of them was logged."""
    starts, goes_on_after = {1: 1, 2: 2}, {1: 0, 2: saved_before}
    for stage, steps in STEPS.items():
        files = sorted((out / f"stage{stage}" / "checkpoints").glob("metrics-*.jsonl"))
        assert [path.name for path in files] == [f"metrics-{i}.jsonl" for i in range(1, starts[stage] + 1)]
        logged = [json.loads(line)["step"] for line in files[-1].read_bytes().splitlines()]
        assert set(logged) == set(range(goes_on_after[stage] + 1, steps + 1))
    assert not (out.parent / "rag-r1-demo").exists()
