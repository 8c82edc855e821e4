"""The whole pipeline in the smallest size, with real trainings, killed in the middle and given again.

The checkpoint of its GRPO is exported with the command of docs/guides/exporting.md, too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from rag_r1.demo.pipeline.arguments import STEP_NAMES
from rag_r1.demo.policy import policy_path
from rag_r1.runs.processes import find_leftovers
from tests.e2e.export_checks import a_step_changed_the_policy, it_is_the_same_model
from tests.e2e.export_command import export
from tests.e2e.left_behind import remaining_processes

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(4000)]

ROOT = Path(__file__).parents[2]
AT_MOST_S = 3000
QUESTIONS, GROUP, EPOCHS = 96, 4, 2


def words(out: Path) -> list[str]:
    """The smallest pipeline. Its base is a policy that knows the format: one that is pretrained for a few
    steps would answer nothing, and the filter would keep nothing."""
    options = {
        "--out": out,
        "--base": policy_path("rag_r1_mq"),
        "--questions": QUESTIONS,
        "--held-out": 8,
        "--sft-epochs": EPOCHS,
        "--sft-batch": 4,
        "--filter-questions": 24,
        "--filter-share": 1,
        "--grpo-steps": 1,
    }
    overrides = (
        "data.train_batch_size=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        f"actor_rollout_ref.rollout.n={GROUP}",
    )
    return [
        *(str(word) for pair in options.items() for word in pair),
        *(word for override in overrides for word in ("--grpo-set", override)),
    ]


def started(out: Path, name: str) -> subprocess.Popen:
    with (out.parent / f"{name}.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rag_r1.cli", "pipeline", *words(out)],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def wait(process: subprocess.Popen, until: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + AT_MOST_S
    while not until():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


def steps_in(path: Path) -> list[int]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line["step"] for line in lines if "train/loss" in line["data"]]


def test_all_steps_killed_in_sft_go_on_and_end_with_a_report(tmp_path):
    out = tmp_path / "out"
    saved = out / "sft" / "run" / "latest_checkpointed_iteration.txt"
    first = started(out, "first")
    try:
        wait(first, lambda: saved.exists() and saved.read_text().strip() != "", tmp_path / "first.log")
    finally:
        first.kill()  # the pipeline alone: its training is left behind
        first.wait()
    left = find_leftovers(out)
    assert left
    for process in left:  # so that it is still there when the pipeline is given again
        os.kill(process, signal.SIGSTOP)
    times = {name: (out / name / "done.json").stat().st_mtime_ns for name in STEP_NAMES[:4]}
    assert not (out / "sft" / "done.json").exists()

    again = started(out, "again")
    try:
        assert again.wait(AT_MOST_S) == 0, (tmp_path / "again.log").read_text()[-3000:]
    finally:
        if again.poll() is None:
            again.terminate()
            again.wait(120)
    output = (tmp_path / "again.log").read_text()
    assert "that an earlier start had left behind" in output and output.count("was done before") == 4
    assert times == {name: (out / name / "done.json").stat().st_mtime_ns for name in times}
    run = out / "sft" / "run"
    before, after = steps_in(run / "metrics-1.jsonl"), steps_in(run / "metrics.jsonl")
    assert min(after) > 1 and min(after) <= max(before) + 1, "SFT went on from its checkpoint"

    report = json.loads((out / "report.json").read_text())
    assert list(report["models"]) == ["base", "sft", "grpo", "grpo_without_sft"]
    assert len(report["claims"]) == 4
    for curve in report["curves"].values():
        assert list(curve["reward"]) == ["1"] and list(curve["held_out_em"]) == ["0", "1"]
    assert report["steps"]["filter"]["questions"] == 24
    assert 0.5 < report["steps"]["traces"]["right"] / QUESTIONS < 0.9
    assert (out / "report.png").exists() and (out / "report.md").exists()
    assert os.listdir(out / "evaluation") and remaining_processes(out) == []

    last = started(out, "last")
    assert last.wait(300) == 0
    assert (tmp_path / "last.log").read_text().count("was done before") == len(STEP_NAMES)

    actor = out / "grpo" / "stage1" / "checkpoints" / "global_step_1" / "actor"
    saved = weights(actor / "huggingface")
    a_step_changed_the_policy(saved, weights(out / "sft" / "run" / "model"))
    export(actor, tmp_path / "exported")
    it_is_the_same_model(tmp_path / "exported", saved, actor / "huggingface")


def weights(folder: Path) -> dict:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()
