"""What measured rates say about a step; tests/e2e/test_step_estimate.py measures them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rag_r1.runs.errors import RunError
from rag_r1.training.step_estimate import (
    Measurement,
    PlayedTrajectories,
    estimate_lines,
    print_estimate,
    step_parts,
)
from tests.recipes.composed_recipes import composed

#: 16 trajectories of 100 tokens in 8 s; 1,000 tokens/s of log-probs and 250 of an update.
RATES = Measurement(PlayedTrajectories(16, 8.0, 100.0), 1000.0, 250.0)
SIZE = ("data.train_batch_size=4", "actor_rollout_ref.rollout.n=8")


def test_a_step_has_the_parts_that_its_recipe_asks_for():
    real = composed("recipes/real_small/grpo", *SIZE)
    assert step_parts(real, RATES) == {"generating": 16, "log-probs": 3.2, "reference": 3.2, "update": 12.8}
    bypass = composed("recipes/demo/grpo", *SIZE)  # takes the engine's log-probs, and has no reference
    assert step_parts(bypass, RATES) == {"generating": 16, "update": 12.8}
    ppo = composed("recipes/demo/ppo_mq", *SIZE)
    assert step_parts(ppo, RATES).keys() >= {"values", "critic"}


def test_each_epoch_of_a_batch_is_an_update():
    config = composed("recipes/real_small/grpo", *SIZE, "actor_rollout_ref.actor.ppo_epochs=3")
    assert step_parts(config, RATES)["update"] == pytest.approx(3 * 12.8)


def test_the_length_of_a_training_counts_its_validations_if_its_steps_are_set(tmp_path):
    pq.write_table(pa.table({"row": list(range(300))}), tmp_path / "val.parquet")
    training = [
        "trainer.total_training_steps=20",
        "trainer.test_freq=10",
        f"data.val_files={tmp_path}/val.parquet",
    ]
    lines = estimate_lines(composed("recipes/real_small/grpo", *SIZE, *training), RATES)
    assert "32 trajectories of 100 tokens" in lines
    # 20 steps of 35.2 s, and 3 times 120 of the 300 rows at half a second each.
    assert lines[-1] == "20 steps, and 3 validations of 120 questions: about 15 minutes"
    twice = composed("recipes/real_small/grpo", *SIZE, *training, "actor_rollout_ref.rollout.val_kwargs.n=2")
    assert estimate_lines(twice, RATES)[-1].endswith("18 minutes")
    lines = composed("recipes/real_small/grpo", *SIZE, *training, "data.val_files=val.jsonl")
    assert estimate_lines(lines, RATES)[-1].startswith("20 steps without validations")
    unset = composed("recipes/real_small/grpo", *SIZE, "trainer.total_training_steps=null")
    assert estimate_lines(unset, RATES)[-1].startswith("trainer.total_training_steps is not set")


def test_a_gpu_is_not_estimated():
    with pytest.raises(RunError, match="measures a CPU"):
        print_estimate(composed("recipes/demo/grpo", "platform=gpu"))
