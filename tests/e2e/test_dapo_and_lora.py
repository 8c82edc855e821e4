"""Two settings of GPU runs in a real training on this CPU: DAPO's group filtering and merged adapters. It is
started outside of the project, with a reward that stands in the folder of the caller, and its validation also
plays the questions under all probes.

What it must have left behind stands in dapo_and_lora_checks.py, own_reward_checks.py and probe_checks.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import demo_protocol, write_demo
from rag_r1.evaluation.probes import command as passages_command
from tests.e2e import own_reward_checks, probe_checks
from tests.e2e.dapo_and_lora_checks import DAPO_CHECKS, LORA_CHECKS, GroupedRun
from tests.e2e.own_reward_checks import OwnRewardRun
from tests.e2e.probe_checks import ProbedRun

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
#: Four answers to a question are all right or all wrong about every fourth time.
STEPS, QUESTIONS, GROUP, VALIDATED = 3, 6, 4, 12
WEIGHT, LIMIT = 0.1, 2
OVERRIDES = [
    "trainer.save_freq=-1",
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={STEPS}",
    f"data.val_max_samples={VALIDATED}",
    f"rag_r1.probes=[{','.join(probe_checks.PLAYED)}]",
    f"data.train_batch_size={QUESTIONS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={QUESTIONS}",
    f"actor_rollout_ref.rollout.n={GROUP}",
    "actor_rollout_ref.model.external_lib=tests.e2e.recording_engine",
    "algorithm.filter_groups.enable=true",
    "algorithm.filter_groups.metric=em",
    "algorithm.filter_groups.max_num_gen_batches=8",
    "actor_rollout_ref.model.lora_rank=8",
    "actor_rollout_ref.actor.optim.lr=1e-2",
    'rag_r1.reward=[{term: em}, {term: "own_reward_of_this_test:brevity", '
    f"weight: {WEIGHT}, limit: {LIMIT}}}]",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> GroupedRun:
    """The finished training, with the README's reward."""
    folder = tmp_path_factory.mktemp("caller")
    out = folder / "out"
    (folder / "own_reward_of_this_test.py").write_text(
        "def brevity(trajectory, golds, *, limit: int = 3) -> float:\n"
        "    return float(trajectory.answer is not None and trajectory.n_searches <= limit)\n"
    )
    passages = folder / "passages.json"
    write_demo(folder / "world", demo_protocol("rag_r1_mq"), seed=1)  # the training's: the same seed
    arguments = ["--data", str(folder / "world" / "val.parquet"), "--out", str(passages), "--no-progress"]
    assert passages_command.main([*arguments, "--corpus", str(folder / "world" / "corpus.jsonl")]) == 0
    command = [
        "-P",
        "-m",
        "rag_r1.demo.run",
        "--recipe",
        "grpo",
        "--seed",
        "1",
        "--out",
        str(out),
        *OVERRIDES,
        f"rag_r1.probe_passages={passages}",
    ]
    environment = {
        "PYTHONPATH": str(ROOT),
        "VERL_ENGINE_VENDOR": "recording",
        "RAG_R1_RECORD": str(out),
    }
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=1100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return GroupedRun(out, policy_path("rag_r1_mq"), STEPS, QUESTIONS, GROUP)


def test_groups_with_one_reward_are_filtered_and_refilled(trained: GroupedRun):
    for check in DAPO_CHECKS:
        check(trained)


def test_merged_adapters_reach_the_engine_after_every_update(trained: GroupedRun):
    for check in LORA_CHECKS:
        check(trained)


def test_the_readmes_reward_is_trained_with_from_a_folder_of_ones_own(trained: GroupedRun):
    run = OwnRewardRun(trained.out, weight=WEIGHT, limit=LIMIT)
    for check in own_reward_checks.CHECKS:
        check(run)


def test_the_validation_plays_every_probe(trained: GroupedRun):
    evidence = probe_checks.evidence_in(trained.out / "data" / "val.parquet")
    run = ProbedRun(trained.out, STEPS, trained.metrics[STEPS], evidence, VALIDATED)
    for check in probe_checks.CHECKS:
        check(run)
