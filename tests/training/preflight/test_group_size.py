"""Estimators that compare the answers to a question, with a single answer to each."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from verl.trainer.ppo.core_algos import AdvantageEstimator, get_adv_estimator_fn

from rag_r1.plugin.algorithms import turn_loo
from rag_r1.training.preflight.sampler import COMPARING, UNUSABLE, check_group_size
from tests.recipes.composed_recipes import composed

pytestmark = pytest.mark.slow  # composed recipes
SIZE, ESTIMATOR = "actor_rollout_ref.rollout.n", "algorithm.adv_estimator"


def advantages(estimator: str) -> list[float]:
    """Those of the only answers to three questions, whose rewards are 1, 0 and 2."""
    rewards, mask = torch.tensor([[0.0, 1], [0, 0], [0, 2]]), torch.ones(3, 2)
    of_tokens = {"old_log_probs": mask * 0, "sum_pi_squared": mask} if "optimal" in estimator else {}
    compute, index = get_adv_estimator_fn(estimator), np.array(["a", "b", "c"])
    found, _ = compute(rewards, response_mask=mask, index=index, config={}, **of_tokens)
    return found[:, -1].tolist()


def test_every_estimator_compares_answers_or_is_known_not_to():
    without_groups = {"gae", "reinforce_plus_plus", "remax"}
    known = {turn_loo.NAME, *(estimator.value for estimator in AdvantageEstimator)}
    assert {*COMPARING, *UNUSABLE, *without_groups} == known


@pytest.mark.parametrize("estimator", COMPARING)
def test_a_single_answer_is_judged_by_its_reward(estimator):
    one, nothing, two = advantages(estimator)
    assert two - nothing == pytest.approx(2 * (one - nothing)) and one > nothing


def test_two_estimators_cannot_train_on_single_answers():
    assert not any(advantages("rloo_vectorized"))
    with pytest.raises(ValueError):
        advantages("grpo_passk")


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        ([], [("warning", SIZE)]),
        ([f"{ESTIMATOR}=rloo_vectorized"], [("error", SIZE)]),
        (["algorithm.filter_groups.enable=true"], [("error", "algorithm.filter_groups.enable")]),
        ([f"{ESTIMATOR}=gae"], []),
        (["trainer.val_only=true"], []),
        ([f"{SIZE}=2"], []),
    ],
)
def test_a_group_of_one_answer_is_named_if_answers_are_compared(overrides, found):
    config = composed("recipes/rag_r1/grpo", f"{SIZE}=1", *overrides)
    assert [(problem.level, problem.where) for problem in check_group_size(config)] == found
