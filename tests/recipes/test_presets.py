"""Every preset composes with the recipes that have room for one, sets what its table says, and passes."""

from __future__ import annotations

import re

import pytest
from omegaconf import OmegaConf

from rag_r1.config.recipes import RECIPES, Recipe, kind_of, shipped_names
from rag_r1.training.composition import compose_valid
from rag_r1.training.preflight.settings import check_llds
from tests.recipes.composed_recipes import compose_quickly, refusals, user_values, values_of

pytestmark = pytest.mark.full  # composing a recipe takes most of a second, and there are sixty

ACTOR = "actor_rollout_ref.actor"
LOSS = f"{ACTOR}.policy_loss"
CORRECTION = "algorithm.rollout_correction"
GRPO = {"algorithm.adv_estimator": "grpo"}
#: What a preset claims, by key.
CLAIMS = {
    "dapo": {
        **GRPO,
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "reward",
        "algorithm.filter_groups.max_num_gen_batches": 10,
        "trainer.v1.sampler.sampler_kwargs.filter_groups.enable": True,
        f"{ACTOR}.clip_ratio_low": 0.2,
        f"{ACTOR}.clip_ratio_high": 0.28,
        f"{ACTOR}.loss_agg_mode": "token-mean",
        f"{ACTOR}.use_kl_loss": False,
        "rag_r1.failures.mask": ["retriever", "tool", "engine", "judge", "row", "error", "budget"],
    },
    "dr_grpo": {
        **GRPO,
        "algorithm.norm_adv_by_std_in_grpo": False,
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
        f"{ACTOR}.use_kl_loss": False,
    },
    "gspo": {
        **GRPO,
        f"{LOSS}.loss_mode": "gspo",
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",
        f"{ACTOR}.clip_ratio_low": 3e-4,
        f"{ACTOR}.clip_ratio_high": 4e-4,
    },
    "llds": {
        **GRPO,
        f"{LOSS}._target_": "rag_r1.plugin.algorithms.llds.LLDSConfig",
        f"{LOSS}.loss_mode": "llds",
        f"{LOSS}.llds_coef": 0.2,
        f"{CORRECTION}.bypass_mode": False,
    },
    "mis": {
        **GRPO,
        f"{CORRECTION}.bypass_mode": False,
        "actor_rollout_ref.rollout.calculate_log_probs": True,
    },
    "rloo": {"algorithm.adv_estimator": "rloo"},
    "tis": {
        **GRPO,
        f"{CORRECTION}.bypass_mode": False,
        "actor_rollout_ref.rollout.calculate_log_probs": True,
    },
}
CLAIMS["turn_loo"] = {
    "algorithm.adv_estimator": "turn_loo",
    "algorithm.use_kl_in_reward": False,
    f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
}
#: The presets that are one of veRL's own, by the function that makes it.
OF_VERL = {"tis": "decoupled_token_is", "mis": "decoupled_seq_is_rs"}
#: The recipes that are trained by GRPO and have room for a preset.
WITH_ROOM = (
    "agentic_rag/dapo_lora",
    "agentic_rag/grpo",
    "agentic_rag/grpo_lora",
    "agentic_rag/grpo_tools",
    "demo/grpo",
    "demo/memory_grpo",
    "rag_r1/grpo",
    "real_small/grpo",
)
README = (RECIPES / "preset" / "README.md").read_text(encoding="utf-8")


def test_each_file_has_its_claims_and_none_is_a_recipe_of_its_own():
    files = sorted((RECIPES / "preset").glob("*.yaml"))
    assert [path.stem for path in files] == sorted(CLAIMS)
    assert {kind_of(path) for path in files} == {None}


def test_the_table_has_each_preset_with_every_key_that_it_sets():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*)$", README, re.M))
    assert sorted(rows) == sorted(CLAIMS)
    for name, row in rows.items():
        config = OmegaConf.load(RECIPES / "preset" / f"{name}.yaml")
        for key in leaves(OmegaConf.to_container(config)):
            assert re.search(rf"[.`]{key.rpartition('.')[2]}[`=]", row), f"{name}: {key}"


def leaves(config: dict, above: str = "") -> list[str]:
    return [
        name
        for key, value in config.items()
        for name in (leaves(value, f"{above}{key}.") if isinstance(value, dict) else [f"{above}{key}"])
    ]


def test_the_table_names_the_recipes_that_have_room():
    with_room = [name for name in shipped_names("train") if "/preset: null" in text_of(name)]
    assert with_room == list(WITH_ROOM)
    assert all(f"`{name}`" in README for name in WITH_ROOM)


def text_of(name: str) -> str:
    return (RECIPES / f"{name}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("recipe", ["demo/grpo", "rag_r1/grpo"])
@pytest.mark.parametrize("preset", CLAIMS)
def test_a_preset_sets_what_it_claims_and_the_preflight_has_nothing_against_it(model_folder, recipe, preset):
    config = compose_quickly(recipe, [*user_values(model_folder), f"preset={preset}"])
    assert values_of(config, CLAIMS[preset]) == CLAIMS[preset]
    assert refusals(config) == []
    zero = preset == "llds" and recipe == "demo/grpo"  # one update a step: test_llds.py
    assert [problem.level for problem in check_llds(config)] == ["warning"] * zero


def test_the_demo_with_llds_and_four_updates_a_step_has_no_problem(model_folder):
    overrides = ["preset=llds", f"{ACTOR}.ppo_mini_batch_size=4"]
    config = compose_quickly("demo/grpo", [*user_values(model_folder), *overrides])
    assert refusals(config) == [] and [*check_llds(config)] == []
    assert overrides[1] in README


@pytest.mark.parametrize(("preset", "function"), OF_VERL.items())
def test_a_correction_has_the_values_of_verls_own_preset(model_folder, preset, function):
    from verl.trainer.config import RolloutCorrectionConfig

    made = getattr(RolloutCorrectionConfig, function)()
    config = compose_quickly("demo/grpo", [*user_values(model_folder), f"preset={preset}"])
    keys = [key for key in config.algorithm.rollout_correction if key != "_target_"]
    assert {key: config.algorithm.rollout_correction[key] for key in keys} == {key: made[key] for key in keys}


@pytest.mark.parametrize("recipe", ["demo/grpo", "rag_r1/grpo"])
@pytest.mark.parametrize("preset", ["dr_grpo", "turn_loo"])
def test_every_sum_over_tokens_is_divided_by_the_same_number(model_folder, recipe, preset):
    config = compose_quickly(recipe, [*user_values(model_folder), f"preset={preset}"])
    actor = config.actor_rollout_ref.actor
    assert actor.loss_scale_factor == config.data.max_response_length > 0


@pytest.mark.parametrize("preset", CLAIMS)
def test_verl_makes_the_actors_settings_of_a_preset_and_finds_its_loss_and_estimator(model_folder, preset):
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    config = compose_quickly("demo/grpo", [*user_values(model_folder), f"preset={preset}"])
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert callable(get_policy_loss_fn(actor.policy_loss.loss_mode))
    assert callable(get_adv_estimator_fn(config.algorithm.adv_estimator))
    assert type(actor.policy_loss).__name__ == ("LLDSConfig" if preset == "llds" else "PolicyLossConfig")


@pytest.mark.parametrize("recipe", WITH_ROOM)
def test_without_a_preset_a_recipe_is_what_it_was_and_with_one_differs(recipe):
    without, with_one = (compose_quickly(recipe, list(words)) for words in ([], ["preset=llds"]))
    assert without.actor_rollout_ref.actor.policy_loss.loss_mode == "vanilla"
    assert with_one.actor_rollout_ref.actor.policy_loss.loss_mode == "llds"


def test_a_value_of_the_users_own_wins_over_the_preset_on_the_command_line_and_in_a_file(tmp_path):
    key = f"{LOSS}.llds_coef"
    assert OmegaConf.select(compose_quickly("rag_r1/grpo", ["preset=llds", f"{key}=0"]), key) == 0
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "defaults: [rag_r1/grpo, override /preset: llds, _self_]\n"
        "actor_rollout_ref: {actor: {policy_loss: {llds_coef: 0.1}}}\n"
    )
    assert OmegaConf.select(compose_quickly(str(mine), []), key) == 0.1


def test_a_recipe_without_room_takes_a_preset_in_a_file_of_ones_own(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("defaults: [r1_searcher/stage2_qwen, /preset: gspo, _self_]\n")
    assert compose_quickly(str(mine), []).actor_rollout_ref.actor.policy_loss.loss_mode == "gspo"


def test_a_wrong_coefficient_is_named_by_verls_validation(compose):
    key = f"{LOSS}.llds_coef"
    (problem,) = refusals(compose("demo/grpo", "preset=llds", f"{key}=-1"))
    assert f"{key} is -1, but must be a number of at least 0" in problem


@pytest.mark.parametrize("preset", CLAIMS)
def test_with_a_memory_a_preset_that_counts_rows_is_refused_as_the_readme_says(compose, preset):
    refused = re.search(r"\*\*A memory\.\*\*(.*?)are refused", README, re.S)[1]
    problems = refusals(compose("demo/memory_grpo", f"preset={preset}"))
    assert bool(problems) is (f"`{preset}`" in refused)
    assert all("rewrites its context" in problem for problem in problems)


@pytest.mark.parametrize("aggregation", ["token-mean", "token-sum"])
def test_with_a_memory_turn_loo_trains_whole_trajectories_by_a_sum_over_tokens(compose, aggregation):
    words = ("preset=turn_loo", f"{ACTOR}.loss_agg_mode={aggregation}")
    assert refusals(compose("demo/memory_grpo", *words)) == []


@pytest.mark.parametrize(
    ("recipe", "word", "words"),
    [
        ("rag_r1/grpo", "preset=lldss", "use one of dapo, dr_grpo, gspo, llds"),
        ("rag_r1/grpo", "+preset=llds", "write preset=llds"),
        ("demo/grpo", "+preset=llds", "write preset=llds"),
        (
            "rag_r1/ppo_mq",
            "preset=gspo",
            "has no preset to replace: in a file of your own: defaults: [the recipe, ",
        ),
        ("rag_r1/ppo_mq", "preset=gspo", "/preset: gspo, _self_]"),
    ],
)
def test_a_preset_that_cannot_be_had_is_told_with_what_can(recipe, word, words):
    config, (fault,) = compose_valid(Recipe.find(recipe), [word, "trainer.total_epochs=7"])
    assert fault.where == "preset" and words in f"{fault.where}: {fault.what}: {fault.remedy}"
    assert config.trainer.total_epochs == 7
