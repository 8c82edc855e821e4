"""One real training of each kind through veRL, Ray, FSDP and vLLM on this CPU, with a live retrieval server.

GRPO runs on real questions and passages where they are (the smoke run, with vectors), and else on the demo's
world; PPO on the demo's world, with the demo's report. What they must have left behind stands in
run_checks.py; what the trainer was given is read inside the actor's training engine (recording_engine.py).
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

import pytest

from rag_r1.agent.trajectory import FAILURE_STATUSES
from rag_r1.demo.policy import policy_path
from rag_r1.demo.run import run_demo
from tests.e2e.demo_training import recording
from tests.e2e.left_behind import json_lines
from tests.e2e.run_checks import CHECKS, Run
from tests.recipes.smoke_recipe import smoke_run, with_passages

pytestmark = pytest.mark.e2e

STEPS, VALIDATION = 2, 12
SMALL = [
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={STEPS}",
    f"data.val_max_samples={VALIDATION}",
    "actor_rollout_ref.model.external_lib=tests.e2e.recording_engine",
]
DEMO = {
    "grpo": [*SMALL, "data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4"],
    "ppo_sq": [
        *SMALL,
        "data.train_batch_size=16",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "critic.ppo_mini_batch_size=16",
    ],
}
SAMPLES = {"grpo": 4 * 8, "ppo_sq": 16}
PASSAGES = 400


def run_the_demo(recipe: str, out: Path) -> tuple[Run, dict]:
    results = run_demo(recipe, out, seed=1, overrides=DEMO[recipe], timeout_s=900)
    policy = policy_path("rag_r1_mq" if recipe == "grpo" else "rag_r1_sq")
    return Run(out, policy, out / "data" / "corpus.jsonl", STEPS, SAMPLES[recipe], "val", VALIDATION), results


def run_on_real_data(out: Path) -> tuple[Run, dict]:
    inputs = with_passages(smoke_run.Inputs.find(smoke_run.data_folder()), PASSAGES, out)
    # vLLM's probabilities as the old ones, so that the actor's are compared with them.
    overrides = [*SMALL, "algorithm.rollout_correction.bypass_mode=true"]
    counts = smoke_run.smoke(inputs, "dense", out, overrides, timeout_s=900)
    assert counts["trajectories"] == {"train": 8 * 4 * STEPS, "test": 2 * VALIDATION}
    return Run(out, smoke_run.POLICY, inputs.corpus, STEPS, 8 * 4, "test", VALIDATION), counts


def real_data_is_there() -> bool:
    try:
        return bool(smoke_run.Inputs.find(smoke_run.data_folder()))
    except smoke_run.SmokeError:
        return False


@pytest.fixture(
    scope="module", params=["grpo", "ppo_sq", pytest.param("demo_grpo", marks=pytest.mark.nightly)]
)
def finished(request, tmp_path_factory):
    """A finished run and what its command returned."""
    kind = request.param
    if kind == "demo_grpo" and not real_data_is_there():
        pytest.skip("left out: without the real data (RAG_R1_DATA) `grpo` is this run")
    out = tmp_path_factory.mktemp(kind)
    with recording(out):
        if kind == "grpo" and real_data_is_there():
            return run_on_real_data(out)
        return run_the_demo(kind.removeprefix("demo_"), out)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_finished_training(finished, check):
    run, _ = finished
    check(run)


def test_each_trained_trajectory_has_its_advantage(finished):
    run, _ = finished
    lines = [
        line for file in (run.out / "trajectories" / "advantages").iterdir() for line in json_lines(file)
    ]
    records = {
        (record["group"], int(record["id"].rpartition("#")[2])): record for record in run.records("train")
    }
    assert len(lines) == len(records) == run.samples * run.steps
    groups: dict[str, list[dict]] = defaultdict(list)
    for line in lines:
        record = records[line["group"], line["sample"]]
        assert line["step"] == record["step"]
        assert line["score"] == pytest.approx(record["rewards"]["score"], abs=1e-4)
        groups[line["group"]].append(line)
    for group in groups.values():
        scores = [line["score"] for line in group]
        assert {line["group_size"] for line in group} == {len(group)}
        for line in group if len(group) > 1 else ():  # GRPO
            expected = (line["score"] - fmean(scores)) / (stdev(scores) + 1e-6)
            assert line["advantage"] == pytest.approx(expected, abs=1e-3)
    prompts = [
        line["prompt_sha256"]
        for file in (run.out / "trajectories" / "prompts").iterdir()
        for line in json_lines(file)
    ]
    assert {record["prompt_sha256"] for record in records.values()} <= set(prompts)
    calls = [call for record in records.values() for turn in record["turns"] for call in turn["calls"]]
    assert {bool(call["index"]) for call in calls if call["status"] == "ok" and call["documents"]} == {True}


def test_the_run_ends_with_what_it_has_found(finished):
    run, results = finished
    if run.validation == "test":  # the smoke run counts
        assert results["passages"] > 0
        assert not set(results["statuses"]) & set(FAILURE_STATUSES)
        return
    assert results["trajectories"] == run.samples * run.steps
    assert sorted(results["held_out"]) == [0, run.steps]
    assert (run.out / "report.png").read_bytes().startswith(b"\x89PNG")
    table = (run.out / "report.md").read_text()
    assert all(
        row in table
        for row in ("EM all", "EM one_hop", "EM bridge", "searches a question", "turns a question")
    )
