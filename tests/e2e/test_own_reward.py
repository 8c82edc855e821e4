"""A reward in the folder of the caller reaches the reward workers, also from outside of the project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rag_r1.records import read_records

ROOT = Path(__file__).parents[2]


@pytest.mark.e2e
@pytest.mark.full
def test_the_readmes_reward_is_trained_with_from_a_folder_of_ones_own(tmp_path):
    (tmp_path / "own_reward_of_this_test.py").write_text(
        "def brevity(trajectory, golds, *, limit: int = 3) -> float:\n"
        "    return float(trajectory.answer is not None and trajectory.n_searches <= limit)\n"
    )
    reward = '[{term: em}, {term: "own_reward_of_this_test:brevity", weight: 0.1, limit: 2}]'
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
    records = list(read_records(tmp_path / "out" / "trajectories" / "train"))
    assert records and all("brevity" in record["rewards"] for record in records)
