"""With a protocol that rewrites its context, what counts a trajectory once for each row is refused by key."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from rag_r1.config.schema import RagR1Config
from rag_r1.training.added_overrides import trainer_overrides
from rag_r1.training.config_facts import verls_mode
from rag_r1.training.preflight.cluster import check_reachability
from rag_r1.training.preflight.sampler import check_sampler
from rag_r1.training.preflight.sessions import check_sessions, splits_sessions
from tests.recipes.composed_recipes import changed, composed

pytestmark = pytest.mark.slow  # composed recipes

#: Settings whose protocol rewrites its context; nothing else of them is looked at.
REWRITING = SimpleNamespace(protocol=SimpleNamespace(rewrites_context=True))
MODE = "trainer.v1.trainer_mode=sessions_sync"
PPO = ("recipes/demo/ppo_sq", MODE)


def report(recipe: str, *overrides: str, **values) -> list[tuple[str, str]]:
    """Keys and remedies of the problems of a recipe, with values that no override could give."""
    problems = [*check_sessions(changed(composed(recipe, *overrides), **values), REWRITING)]
    assert all(problem.level == "error" for problem in problems)
    return [(problem.where, problem.remedy) for problem in problems]


def test_a_protocol_says_whether_it_rewrites_its_context():
    assert splits_sessions(REWRITING)
    assert not splits_sessions(None) and not splits_sessions(SimpleNamespace(protocol=None))
    assert not splits_sessions(SimpleNamespace(protocol=SimpleNamespace()))


@pytest.mark.parametrize("name", ["search_r1", "rag_r1_sq", "rag_r1_mq", "r1_searcher"])
def test_a_protocol_that_keeps_its_context_is_asked_for_nothing(name):
    settings = RagR1Config.from_config({"protocol": name, "retriever": {"url": "http://127.0.0.1:1"}})
    unfit = composed(
        "recipes/r1_searcher/stage2_qwen", "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum"
    )
    assert [*check_sessions(unfit, settings)] == []
    assert [*check_sessions(unfit, REWRITING)]


@pytest.mark.parametrize("recipe", ["recipes/demo/grpo", "recipes/demo/ppo_sq", "recipes/rag_r1/grpo"])
def test_a_recipe_with_the_right_trainer_passes(recipe):
    assert report(recipe, MODE) == []


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_verls_own_trainers_are_refused_and_ours_is_named(mode):
    (problem,) = report("recipes/demo/grpo", f"trainer.v1.trainer_mode={mode}")
    assert problem == ("trainer.v1.trainer_mode", f"set trainer.v1.trainer_mode=sessions_{mode}")
    assert verls_mode(f"sessions_{mode}") == verls_mode(f"search_{mode}") == mode == verls_mode(mode)


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", "token-mean or token-sum"),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm", "token-mean or token-sum"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "vanilla or dppo_tv"),
        ("actor_rollout_ref.actor.shuffle=true", "false"),
        ("algorithm.adv_estimator=rloo", "grpo or gae or reinforce_plus_plus"),
        ("algorithm.adv_estimator=reinforce_plus_plus_baseline", "grpo or gae or reinforce_plus_plus"),
        ("algorithm.use_kl_in_reward=true", "false"),
        ("algorithm.rollout_correction.rollout_is=sequence", "null or token"),
        ("algorithm.rollout_correction.rollout_rs=token_k1", "null"),
        ("distillation.enabled=true", "false"),
    ],
)
def test_a_setting_that_counts_rows_is_named_with_what_does_not(override, remedy):
    key = override.partition("=")[0]
    problems = report("recipes/demo/grpo", MODE, override)
    # The critic aggregates as the actor does, but GRPO has none.
    assert [key for key, _ in problems] == [key]
    assert problems[0][1].startswith(f"set {key}={remedy}")


@pytest.mark.parametrize(
    ("override", "keys"),
    [
        ("algorithm.gamma=0.99", ["algorithm.gamma"]),
        ("algorithm.lam=0.95", ["algorithm.lam"]),
        ("++algorithm.use_pf_ppo=true", ["algorithm.use_pf_ppo"]),
        ("critic.shuffle=true", ["critic.shuffle"]),
        ("critic.ppo_mini_batch_size=8", ["critic.ppo_mini_batch_size"]),
        ("critic.loss_agg_mode=seq-mean-token-sum", ["critic.loss_agg_mode"]),
        (
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
            ["actor_rollout_ref.actor.loss_agg_mode", "critic.loss_agg_mode"],
        ),
        ("critic.fsdp.ulysses_sequence_parallel_size=2", ["critic.fsdp.ulysses_sequence_parallel_size"]),
    ],
)
def test_a_critic_is_looked_at_too(override, keys):
    assert [key for key, _ in report(*PPO, override)] == keys


def test_the_published_ppo_has_its_penalty_in_the_reward_and_is_refused():
    assert [key for key, _ in report("recipes/rag_r1/ppo_mq", MODE)] == ["algorithm.use_kl_in_reward"]


def test_reinforce_needs_no_lambda_but_gamma():
    args = ("recipes/demo/grpo", MODE, "algorithm.adv_estimator=reinforce_plus_plus", "algorithm.lam=0.9")
    assert report(*args) == []
    assert [key for key, _ in report(*args, "algorithm.gamma=0.9")] == ["algorithm.gamma"]


def test_a_reward_model_that_shares_the_gpus_is_refused():
    key = "reward.reward_model.enable_resource_pool"
    problems = report("recipes/demo/grpo", MODE, "reward.reward_model.enable=true")
    assert problems == [(key, f"set {key}=true")]


def test_everything_is_named_at_once():
    problems = report("recipes/demo/grpo", "algorithm.adv_estimator=rloo", "algorithm.use_kl_in_reward=true")
    assert len(problems) == 3


def test_the_other_checks_know_our_trainers_by_verls_mode():
    assert [*check_sampler(composed("recipes/demo/grpo", MODE))] == []
    config = composed("recipes/demo/grpo", "trainer.v1.trainer_mode=sessions_separate_async")
    (problem,) = check_sampler(config)
    assert problem.remedy.endswith("SearchReplayBufferAsync")
    apart = composed(
        "recipes/demo/grpo",
        "trainer.v1.trainer_mode=sessions_separate_async",
        "actor_rollout_ref.rollout.nnodes=1",
        "rag_r1.retriever.url=http://127.0.0.1:8000",
    )
    assert [problem.where for problem in check_reachability(apart)] == ["rag_r1.retriever.url"]


@pytest.mark.parametrize("mode", ["search_snyc", "5", "null"])
def test_a_trainer_mode_that_there_is_not_is_named_and_not_the_sampler(mode):
    (problem,) = check_sampler(composed("recipes/demo/grpo", f"trainer.v1.trainer_mode={mode}"))
    assert problem.where == "trainer.v1.trainer_mode" and "one of search_sync, " in problem.remedy


@pytest.mark.parametrize(
    ("before", "after"),
    [("null", "rag_r1.session_trainers"), ("mine", "mine,rag_r1.session_trainers")],
)
def test_verl_loads_the_trainer_of_the_mode_and_otherwise_none(before, after):
    name = "ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES"
    words = ("recipes/demo/grpo", MODE, f"{name}={before}")
    (override,) = trainer_overrides(composed(*words))
    assert OmegaConf.select(composed(*words, override), name) == after
    with_ours = f"{name}='mine,rag_r1.session_trainers'"  # as rag_r1_defaults.yaml says for further modules
    assert trainer_overrides(composed("recipes/demo/grpo", MODE, with_ours)) == []
    assert trainer_overrides(composed("recipes/demo/grpo", "trainer.v1.trainer_mode=sync")) == []
