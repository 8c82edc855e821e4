"""A reward in the folder of the caller reaches the reward workers, also from outside of the project.

What the training must have left behind stands in own_reward_checks.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from own_reward_checks import CHECKS, OwnRewardRun

ROOT = Path(__file__).parents[2]
WEIGHT, LIMIT = 0.1, 2


@pytest.mark.e2e
@pytest.mark.full
def test_the_readmes_reward_is_trained_with_from_a_folder_of_ones_own(tmp_path):
    (tmp_path / "own_reward_of_this_test.py").write_text(
        "def brevity(trajectory, golds, *, limit: int = 3) -> float:\n"
        "    return float(trajectory.answer is not None and trajectory.n_searches <= limit)\n"
    )
    own = f'{{term: "own_reward_of_this_test:brevity", weight: {WEIGHT}, limit: {LIMIT}}}'
    reward = f"[{{term: em}}, {own}]"
    command = [
        sys.executable,
        "-P",
        "-m",
        "rag_r1.demo.run",
        "--recipe",
        "grpo",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(
        [*command, "trainer.total_training_steps=1", f"rag_r1.reward={reward}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = OwnRewardRun(tmp_path / "out", weight=WEIGHT, limit=LIMIT)
    for check in CHECKS:
        check(run)
