"""LLDS where it would be 0, or would punish what is not the policy's, is told with the keys."""

from __future__ import annotations

import pytest

from rag_r1.training.preflight.settings import check_llds
from tests.recipes.composed_recipes import composed

SIZE = "actor_rollout_ref.actor.ppo_mini_batch_size"
EPOCHS = "actor_rollout_ref.actor.ppo_epochs"
BYPASS = "algorithm.rollout_correction.bypass_mode"
SEPARATE = "trainer.v1.trainer_mode=search_separate_async"
SYNC = "trainer.v1.separate_async.parameter_sync_step"

pytestmark = pytest.mark.slow  # composing a recipe takes most of a second


def report(*overrides: str, recipe: str = "recipes/demo/grpo", preset: str = "llds"):
    return [*check_llds(composed(recipe, f"preset={preset}", *overrides))]


def test_with_one_update_a_step_the_warning_names_the_keys_and_values_that_help():
    (problem,) = report()
    assert (problem.level, problem.where) == ("warning", SIZE)
    assert "is 16, all of data.train_batch_size=16" in problem.what and EPOCHS in problem.what
    assert "exactly 0" in problem.what
    assert problem.remedy == f"set it to 4, say, or {EPOCHS}=2"


@pytest.mark.parametrize(
    "override", [f"{SIZE}=4", f"{SIZE}=15", f"{EPOCHS}=2", "data.train_batch_size=32", "preset=gspo"]
)
def test_with_several_updates_and_with_other_losses_nothing_is_said(override):
    if override.startswith("preset="):
        assert report(preset=override.partition("=")[2]) == []
    else:
        assert report(override) == []


def test_a_batch_of_one_prompt_can_have_epochs_only():
    (problem,) = report("data.train_batch_size=1", f"{SIZE}=1")
    assert problem.remedy == f"set {EPOCHS}=2"


def test_the_old_log_probs_of_vllm_are_warned_of():
    (problem,) = report(f"{SIZE}=4", f"{BYPASS}=true")
    assert (problem.level, problem.where) == ("warning", BYPASS)
    assert "vLLM's log-probs" in problem.what and problem.remedy.startswith("set it to false")
    assert [problem.where for problem in report(f"{BYPASS}=true")] == [SIZE, BYPASS]


def test_the_trainer_with_separate_gpus_compares_with_the_weights_that_generate():
    assert report(SEPARATE, f"{SYNC}=4") == []
    assert [problem.where for problem in report(SEPARATE, f"{SYNC}=1")] == [SIZE]


def test_the_loss_without_its_coefficient_is_an_error_with_the_preset_that_has_it():
    (problem,) = report("actor_rollout_ref.actor.policy_loss.loss_mode=llds", f"{SIZE}=4", preset="tis")
    assert (problem.level, problem.where) == ("error", "actor_rollout_ref.actor.policy_loss._target_")
    assert "preset=llds" in problem.remedy
