"""The GPU recipes compose, pass veRL's own validation, and hold the published numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rag_r1.config.recipes import RECIPES, Recipe
from rag_r1.runs.errors import RunError
from rag_r1.training.composition import compose_recipe
from rag_r1.training.preflight.cluster import check_batch_sizes
from rag_r1.training.preflight.settings import check_rag_r1_keys, check_required_keys
from tests.recipes.composed_recipes import changed, composed, refusals, user_values, values_of

pytestmark = pytest.mark.slow  # a composed recipe takes most of a second, and there are forty

GPU_RECIPES = ["recipes/rag_r1/ppo_sq", "recipes/rag_r1/ppo_mq", "recipes/rag_r1/grpo"]


@pytest.mark.parametrize("name", GPU_RECIPES)
@pytest.mark.parametrize("nodes", [1, 4])
def test_nothing_is_refused_on_one_node_and_on_several(name: str, nodes: int, compose):
    assert refusals(changed(compose(name), trainer__nnodes=nodes)) == []


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_runs_on_a_cpu_by_one_override(name: str, compose):
    config = compose(name, "platform=cpu")
    assert (config.trainer.device, config.trainer.n_gpus_per_node) == ("cpu", 1)
    assert config.actor_rollout_ref.actor.strategy == config.critic.strategy == "fsdp2"
    assert refusals(config) == []


@pytest.mark.parametrize("name", [*GPU_RECIPES, "recipes/r1_searcher/stage1_llama"])
def test_trains_with_megatron_by_one_override(name: str, compose):
    config = compose(name, "platform=megatron")
    actor = config.actor_rollout_ref.actor
    assert actor.strategy == config.actor_rollout_ref.ref.strategy == config.critic.strategy == "megatron"
    assert actor.megatron.tensor_model_parallel_size == 4 and actor.megatron.optimizer_offload
    assert config.trainer.device == "cuda" and config.actor_rollout_ref.rollout.name == "vllm"
    assert actor.optim.lr == compose(name).actor_rollout_ref.actor.optim.lr
    assert refusals(config) == [] == list(check_batch_sizes(config))


@pytest.mark.parametrize("name", ["recipes/rag_r1/ppo_mq", "recipes/demo/ppo_mq"])
def test_trains_without_flash_attn_by_one_override(name: str, model_folder: Path, compose):
    config = compose(name, f"critic.model.path={model_folder}", "platform=gpu_sdpa")
    for part in (config.actor_rollout_ref, config.critic):
        assert part.model.override_config.attn_implementation == "sdpa"
    assert config.actor_rollout_ref.model.use_fused_kernels and config.trainer.device == "cuda"
    assert refusals(config) == []


def test_the_demo_is_the_same_on_a_gpu_but_for_the_platform(compose):
    cpu, gpu = (compose("recipes/demo/grpo", f"platform={platform}") for platform in ("cpu", "gpu"))
    assert (cpu.trainer.device, gpu.trainer.device) == ("cpu", "cuda")
    keys = ["rag_r1", "algorithm", "reward.num_workers", "trainer.n_gpus_per_node", "trainer.v1.sampler"]
    for name in ("name", "n", "tensor_model_parallel_size", "max_model_len", "max_num_seqs", "agent"):
        keys.append(f"actor_rollout_ref.rollout.{name}")
    assert values_of(cpu, keys) == values_of(gpu, keys)
    assert refusals(gpu) == []


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_a_replica_generates_what_it_is_given_at_once(name: str):
    config = composed(name)
    trajectories = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    assert trajectories / config.trainer.n_gpus_per_node <= config.actor_rollout_ref.rollout.max_num_seqs


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_validation_has_the_limits_of_the_published_evaluation(name: str, compose):
    settings, _ = check_rag_r1_keys(compose(name))
    training, validation = settings.budget(8192), settings.budget(8192, validation=True)
    assert (training.max_turns, training.max_turn_tokens) == (4, 500)
    assert (validation.max_turns, validation.max_turn_tokens) == (5, 1024)
    assert validation.max_query_observation_tokens == training.max_query_observation_tokens == 1000


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_what_a_user_must_give_is_open_and_named(name: str):
    assert {problem.where for problem in check_required_keys(composed(name))} == {
        "actor_rollout_ref.model.path",
        "data.train_files",
        "data.val_files",
        "rag_r1.retriever.url",
    }


def test_critic_starts_from_the_policys_model(model_folder: Path, compose):
    assert compose("recipes/rag_r1/ppo_mq").critic.model.path == str(model_folder)


@pytest.mark.parametrize("override", ["rag_r1.agent.max_turn=3", "trainer.total_step=3", "data.batchsize=1"])
def test_unknown_key_is_refused_by_name(override: str):
    with pytest.raises(RunError, match=override.partition("=")[0]):
        composed("recipes/rag_r1/ppo_mq", override)


@pytest.mark.parametrize("path", RECIPES.rglob("*.yaml"), ids=lambda path: str(path.relative_to(RECIPES)))
def test_no_recipe_holds_an_address_or_an_absolute_path(path: Path):
    lines = [line.partition("#")[0] for line in path.read_text(encoding="utf-8").splitlines()]
    # A defaults list names config groups from the root: `- /platform: gpu`, `- override /model_engine: dp`.
    lines = [re.sub(r"^ *- (override )?/", "", line) for line in lines]
    assert [line for line in lines if "http" in line or " /" in line] == []


def test_a_recipe_of_ones_own_finds_the_shipped_fragments(tmp_path: Path, model_folder: Path):
    recipe = tmp_path / "mine.yaml"
    lines = ["# @package _global_", "defaults: [/ppo_trainer, /rag_r1/_ppo, _self_]"]
    lines += ["rag_r1: {protocol: rag_r1_sq}", "data: {train_batch_size: 1024}"]
    recipe.write_text("\n".join(lines))
    config = compose_recipe(Recipe.find(str(recipe)), user_values(model_folder))
    assert (config.data.train_batch_size, config.rag_r1.protocol) == (1024, "rag_r1_sq")
    assert config.algorithm.kl_ctrl.kl_coef == 0.001


def test_the_command_is_verls_own_with_the_overrides_as_given():
    command = Recipe.find("recipes/rag_r1/grpo").command(["trainer.nnodes=2", "+a.b='x y'"])
    assert command[1:] == [
        "-m",
        "verl.trainer.main_ppo",
        f"--config-path={RECIPES}",
        "--config-name=rag_r1/grpo",
        f'hydra.searchpath=["pkg://verl.trainer.config","file://{RECIPES}"]',
        "trainer.nnodes=2",
        "+a.b='x y'",
    ]
