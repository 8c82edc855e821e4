"""Recipes for few GPUs: each passes all checks, fits by the estimate, and has what its README says."""

from __future__ import annotations

import re

import pytest

from rag_r1.config.recipes import RECIPES, shipped_names
from rag_r1.training.preflight.adapters import check_adapters
from rag_r1.training.preflight.cluster import check_batch_sizes
from rag_r1.training.preflight.memory.formulas import NF4_BYTES
from rag_r1.training.preflight.memory.shape import SHAPES
from rag_r1.training.preflight.model import check_critic
from rag_r1.training.recipe_table import memory_for, size_for
from tests.recipes.composed_recipes import changed, composed, refusals, user_values, values_of

pytestmark = pytest.mark.slow  # composed recipes

NAMES = [name.removeprefix("hardware/") for name in shipped_names("train") if name.startswith("hardware/")]
NF4 = [name for name in NAMES if name.endswith("nf4")]
PPO = {"one_gpu_24_ppo": "0.5B", "one_gpu_80_ppo": "1.5B"}
#: Sizes of policies, by the README's table of recipes.
SIZES = {name: [size_for(f"hardware/{name}")] for name in NAMES}
SIZES |= {name: ["1.5B", "3B"] for name in ("one_gpu_24_grpo", "one_gpu_24_ppo")}
README = (RECIPES / "hardware" / "README.md").read_text(encoding="utf-8")
MODEL, ACTOR, ROLLOUT = (f"actor_rollout_ref.{name}" for name in ("model", "actor", "rollout"))


def recipe(name: str, model_folder, *overrides: str):
    critic = [f"critic.model.path={model_folder}"] if name in PPO else []
    return composed(f"recipes/hardware/{name}", *user_values(model_folder), *critic, *overrides)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("platform", ["gpu_sdpa", "gpu"])
def test_nothing_is_refused(name, platform, model_folder):
    config = recipe(name, model_folder, f"platform={platform}")
    assert (
        refusals(config) == [] == [*check_batch_sizes(config), *check_adapters(config), *check_critic(config)]
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_size_of_the_readme_fits_into_the_gpu_that_the_recipe_names(name):
    row = re.search(rf"^\| `{name}` \| (\w+) of (\d+) GB \| (.*?) \|", README, re.M)
    config = composed(f"recipes/hardware/{name}")
    assert {"one": 1, "two": 2}[row[1]] == config.trainer.n_gpus_per_node
    assert int(row[2]) == config.rag_r1.gpu_memory_gb
    assert row[3].split(" or ") == SIZES[name]
    for size in SIZES[name]:
        memory = memory_for(f"hardware/{name}", config, size)
        assert memory.gpu_bytes == int(row[2]) * 1e9
        assert all(phase.total_bytes <= memory.gpu_bytes for phase in memory.phases), size
        assert memory.cached_contexts >= 3


def test_7_billion_parameters_in_bf16_do_not_fit_into_24_gb_as_the_readme_says():
    memory = memory_for("hardware/one_gpu_24_grpo", composed("recipes/hardware/one_gpu_24_grpo"), "7B")
    assert "in bf16 do not fit into 24 GB" in README
    assert max(phase.total_bytes for phase in memory.phases) > memory.gpu_bytes


@pytest.mark.parametrize("name", NAMES)
def test_adapters_are_sent_as_they_are_and_no_update_rounds_away(name):
    config = composed(f"recipes/hardware/{name}")
    values = values_of(
        config, [f"{MODEL}.lora.merge", f"{MODEL}.target_modules", f"{MODEL}.use_fused_kernels"]
    )
    assert list(values.values()) == [False, "all-linear", True]
    assert config.actor_rollout_ref.model.lora_rank == (16 if name == "one_gpu_24_nf4" else 32)
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    if name in NF4:
        assert (rollout.load_format, rollout.layered_summon, actor.optim.lr) == ("dummy", False, 3e-5)
        assert actor.checkpoint.save_lora_only and rollout.calculate_log_probs
        assert config.algorithm.rollout_correction.rollout_is == "token"
    else:
        assert (rollout.load_format, rollout.layered_summon) == ("safetensors", False)
        assert (actor.fsdp_config.model_dtype, actor.optim.lr) == ("bf16", 1e-4)
        assert actor.fsdp_config.use_orig_params
        assert config.actor_rollout_ref.ref.fsdp_config.model_dtype == "bf16"


@pytest.mark.parametrize("name", NAMES)
def test_there_are_few_processes(name):
    config = composed(f"recipes/hardware/{name}")
    assert config.actor_rollout_ref.rollout.agent.num_workers == 2
    assert (
        config.reward.num_workers == config.transfer_queue.backend.SimpleStorage.num_data_storage_units == 1
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_step_has_64_questions_and_two_updates_and_the_rows_that_the_readme_says(name):
    config = composed(f"recipes/hardware/{name}")
    assert config.data.train_batch_size == 2 * config.actor_rollout_ref.actor.ppo_mini_batch_size == 64
    row = config.data.max_prompt_length + config.data.max_response_length
    assert row == config.actor_rollout_ref.rollout.max_model_len == (5120 if "24" in name else 10_240)
    if "24" in name:
        agent = config.rag_r1.agent
        assert (agent.max_turns, agent.max_observation_tokens, agent.max_turn_tokens) == (3, 800, 400)


@pytest.mark.parametrize(("name", "size"), PPO.items())
def test_a_critic_must_be_given_and_the_readme_names_its_size(name, size):
    config = composed(f"recipes/hardware/{name}")
    (problem,) = check_critic(config)
    assert problem.where == "critic.model.path" and f"Qwen2.5-{size}-Instruct" in README
    (problem,) = check_critic(changed(config, critic__model__path="./nowhere"))
    assert "not a model folder" in problem.what


def test_the_readmes_bytes_of_a_weight_are_the_formulas():
    assert f"{NF4_BYTES:.2f}".lstrip("0") in README
    assert 2 * SHAPES["7B"].parameters / 1e9 == pytest.approx(15, abs=0.5), "vLLM's 15 GB"
