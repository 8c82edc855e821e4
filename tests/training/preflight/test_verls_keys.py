"""Values of veRL's keys that it would take, and with which a run ends late or trains nothing, are refused."""

from __future__ import annotations

import pytest

from rag_r1.training.preflight.verls_keys.validation import check_verl, check_verls_blocks
from rag_r1.training.preflight.verls_keys.values import check_values
from tests.recipes.composed_recipes import changed, composed

pytestmark = pytest.mark.slow  # composed recipes

RECIPE, SFT = "recipes/rag_r1/ppo_mq", "recipes/rag_r1/sft/demo"
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
CUSTOM = "data.custom_cls.path"


@pytest.mark.parametrize("recipe", [RECIPE, "recipes/agentic_rag/grpo_lora", SFT])
def test_shipped_recipes_have_values_that_verl_can_use(recipe):
    assert [*check_values(composed(recipe))] == []


@pytest.mark.parametrize(
    ("key", "values", "remedy"),
    [
        (f"{ROLLOUT}.gpu_memory_utilization", (0, 1.5, -1), "above 0 and at most 1"),
        (f"{ROLLOUT}.top_p", (0, 1.1), "above 0 and at most 1"),
        (f"{ROLLOUT}.temperature", (-0.1,), "at least 0"),
        (f"{ROLLOUT}.val_kwargs.n", (0,), "at least 1"),
        (f"{ROLLOUT}.agent.num_workers", (0,), "at least 1"),
        (f"{ACTOR}.clip_ratio_high", (-0.2,), "at least 0"),
        (f"{ACTOR}.ppo_epochs", (0,), "at least 1"),
        (f"{ACTOR}.optim.clip_grad", (0, -1), "above 0"),
        ("critic.optim.weight_decay", (-0.1,), "at least 0"),
        (f"{ACTOR}.optim.lr_warmup_steps_ratio", (1.5,), "of at most 1"),
        ("algorithm.gamma", (-0.1, 1.1), "of at least 0 and at most 1"),
        ("data.val_batch_size", (-1,), "at least 0"),
        ("data.dataloader_num_workers", (-1,), "at least 0"),
    ],
)
def test_a_number_out_of_its_range_is_named_with_the_range(key, values, remedy):
    for value in values:
        (problem,) = check_values(changed(composed(RECIPE), **{key: value}))
        assert (problem.level, problem.where) == ("error", key) and remedy in problem.remedy


def test_numbers_that_verl_reads_as_off_and_those_of_a_critic_that_is_not_trained_are_accepted():
    off = {"data.val_batch_size": 0, f"{ACTOR}.optim.lr_warmup_steps_ratio": -1, f"{ROLLOUT}.temperature": 0}
    assert [*check_values(changed(composed(RECIPE), **off))] == []
    assert [*check_values(changed(composed("recipes/rag_r1/grpo"), critic__ppo_epochs=0))] == []


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("algorithm.adv_estimator", "gaee", "gae"),
        (f"{ACTOR}.policy_loss.loss_mode", "vanila", "vanilla"),
        (f"{ROLLOUT}.agent.default_agent_loop", "search", "search_agent"),
        ("reward.reward_manager.name", "xyz", "search"),
        ("trainer.resume_mode", "never", "auto, disable, resume_path"),
        ("trainer.device", "tpu", "cpu, cuda, npu"),
    ],
)
def test_a_name_that_verl_does_not_have_is_named_with_those_that_it_has(key, value, remedy):
    (problem,) = check_values(changed(composed(RECIPE), critic__enable=True, **{key: value}))
    assert (problem.level, problem.where) == ("error", key) and remedy in problem.remedy


def test_a_part_of_a_checkpoint_that_does_not_exist_is_named():
    for recipe, key in ((RECIPE, f"{ACTOR}.checkpoint.save_contents"), (SFT, "checkpoint.save_contents")):
        (problem,) = check_values(changed(composed(recipe), **{key: ["model", "optimiser"]}))
        assert problem.where == key and "optimizer" in problem.remedy


def test_a_divergence_is_checked_where_it_is_used():
    off = changed(composed(RECIPE), algorithm__kl_penalty="k9", algorithm__use_kl_in_reward=False)
    assert [*check_values(off)] == []
    (problem,) = check_values(changed(off, algorithm__use_kl_in_reward=True))
    assert problem.where == "algorithm.kl_penalty" and "k9" in problem.what
    on = changed(off, **{f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_type": "k3+"})
    assert [*check_values(on)] == []


def test_a_name_that_a_plugin_has_registered_or_a_module_of_the_run_may_register_is_accepted(monkeypatch):
    from verl.trainer.ppo import core_algos

    mine = changed(composed(RECIPE), critic__enable=True, algorithm__adv_estimator="mine")
    assert [*check_values(changed(mine, **{CUSTOM: "my_data.py"}))] == []
    assert [problem.where for problem in check_values(mine)] == ["algorithm.adv_estimator"]
    monkeypatch.setitem(core_algos.ADV_ESTIMATOR_REGISTRY, "mine", len)
    assert [*check_values(mine)] == []


def test_an_assertion_of_verl_without_a_message_is_told_by_its_line():
    wrong = {"actor_rollout_ref.actor.optim.lr_scheduler_type": "linear"}
    (problem,) = check_verl(changed(composed(RECIPE), **wrong), has_model=False)
    assert "lr_scheduler_type in" in problem.what and "cosine" in problem.what


def test_what_verl_asserts_of_engine_and_optimizer_of_a_fine_tuning_is_told_before_it_starts():
    wrong = changed(composed(SFT), optim__lr_scheduler_type="linear", engine__strategy="fsdp3")
    engine, optimizer = check_verls_blocks(wrong)
    assert engine.where == "engine" and "fsdp3" in engine.what
    assert optimizer.where == "optim" and "lr_scheduler_type" in optimizer.what
    assert [*check_verls_blocks(composed(SFT))] == []
