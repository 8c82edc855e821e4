"""The GPU recipes compose, pass veRL's own validation, and hold the published numbers."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rag_r1.config.recipes import RECIPES, Recipe, RecipeError, shipped_names
from rag_r1.config.schema import RagR1Config
from rag_r1.training.command import compose_recipe
from rag_r1.training.preflight.cluster import check_batch_sizes
from rag_r1.training.preflight.settings import (
    check_lengths,
    check_rag_r1_keys,
    check_required_keys,
    check_verl,
)
from tests.recipes.composed_recipes import composed, given

pytestmark = pytest.mark.slow  # a composed recipe takes most of a second, and there are forty

GPU_RECIPES = ["recipes/rag_r1/ppo_sq", "recipes/rag_r1/ppo_mq", "recipes/rag_r1/grpo"]

# RAG-R1's train_ppo.sh and train_ppo_mq.sh; micro batches are the published totals over eight GPUs.
RAG_R1 = {
    "rag_r1.agent.max_turns": 4,
    "rag_r1.agent.final_turn": True,
    "rag_r1.agent.max_turn_tokens": 500,
    "rag_r1.agent.max_query_observation_tokens": 1000,
    "rag_r1.retriever.topk": 3,
    "rag_r1.reward": [{"term": "em", "weight": 1.0}],
    "data.train_batch_size": 512,
    "data.max_prompt_length": 2048,
    "data.max_response_length": 8192,
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": 0.285,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 32 // 8,
    "actor_rollout_ref.actor.clip_ratio": 0.2,
    "actor_rollout_ref.actor.entropy_coeff": 0.001,
    "actor_rollout_ref.actor.fsdp_config.param_offload": True,
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": True,
    "actor_rollout_ref.ref.fsdp_config.param_offload": True,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 64 // 8,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 64 // 8,
    "actor_rollout_ref.rollout.temperature": 1.0,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.6,
    "actor_rollout_ref.rollout.val_kwargs.do_sample": False,
    # RAG-R1's evaluation.
    "rag_r1.validation_agent": {"max_turns": 5, "max_turn_tokens": 1024},
    # Ours.
    "actor_rollout_ref.actor.use_dynamic_bsz": True,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 2 * 10240,
    "actor_rollout_ref.actor.entropy_from_logits_with_chunking": True,
    "actor_rollout_ref.actor.fsdp_config.entropy_from_logits_with_chunking": True,
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": True,
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True,
    "actor_rollout_ref.rollout.max_num_seqs": 512,
    "actor_rollout_ref.actor.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
    "trainer.max_actor_ckpt_to_keep": 2,
    "trainer.max_critic_ckpt_to_keep": 2,
    "trainer.total_training_steps": 500,
    "trainer.n_gpus_per_node": 8,
    "trainer.save_freq": 50,
    "trainer.test_freq": 50,
}
PPO = {
    "algorithm.adv_estimator": "gae",
    "algorithm.gamma": 1.0,
    "algorithm.lam": 1.0,
    "algorithm.use_kl_in_reward": True,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "actor_rollout_ref.actor.use_kl_loss": False,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 128,
    "actor_rollout_ref.rollout.n": 1,
    "critic.optim.lr": 1e-5,
    "critic.optim.lr_warmup_steps_ratio": 0.015,
    "critic.ppo_mini_batch_size": 128,
    "critic.ppo_micro_batch_size_per_gpu": 8 // 8,
    "critic.fsdp.param_offload": True,
    "critic.fsdp.optimizer_offload": True,
}
# Search-R1's train_grpo.sh.
GRPO = {
    "algorithm.adv_estimator": "grpo",
    "algorithm.use_kl_in_reward": False,
    "actor_rollout_ref.rollout.n": 5,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
}
NUMBERS = {
    "recipes/rag_r1/ppo_sq": {**RAG_R1, **PPO, "rag_r1.protocol": "rag_r1_sq"},
    "recipes/rag_r1/ppo_mq": {**RAG_R1, **PPO, "rag_r1.protocol": "rag_r1_mq"},
    "recipes/rag_r1/grpo": {**RAG_R1, **GRPO, "rag_r1.protocol": "rag_r1_mq"},
}


def with_values(config, values: dict):
    config = deepcopy(config)
    OmegaConf.set_readonly(config, False)
    for key, value in values.items():
        OmegaConf.update(config, key, value)
    return config


@pytest.mark.parametrize("name", GPU_RECIPES)
@pytest.mark.parametrize("nodes", [1, 4])
def test_passes_verls_own_validation_on_one_node_and_on_several(name: str, nodes: int, model_folder: Path):
    config = with_values(composed(name, *given(model_folder)), {"trainer.nnodes": nodes})
    assert check_required_keys(config) == []
    assert check_verl(config, model_is_there=True) == []
    assert check_lengths(config) == []


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_runs_on_a_cpu_by_one_override(name: str, model_folder: Path):
    config = composed(name, *given(model_folder), "platform=cpu")
    assert (config.trainer.device, config.trainer.n_gpus_per_node) == ("cpu", 1)
    assert config.actor_rollout_ref.actor.strategy == config.critic.strategy == "fsdp2"
    assert check_verl(config, model_is_there=True) == []


@pytest.mark.parametrize("name", [*GPU_RECIPES, "recipes/r1_searcher/stage1_llama"])
def test_trains_with_megatron_by_one_override(name: str, model_folder: Path):
    config = composed(name, *given(model_folder), "platform=megatron")
    actor = config.actor_rollout_ref.actor
    assert actor.strategy == config.actor_rollout_ref.ref.strategy == config.critic.strategy == "megatron"
    assert actor.megatron.tensor_model_parallel_size == 4 and actor.megatron.optimizer_offload
    assert config.trainer.device == "cuda" and config.actor_rollout_ref.rollout.name == "vllm"
    assert actor.optim.lr == composed(name, *given(model_folder)).actor_rollout_ref.actor.optim.lr
    assert check_verl(config, model_is_there=True) == [] == check_batch_sizes(config)


@pytest.mark.parametrize("name", ["recipes/rag_r1/ppo_mq", "recipes/demo/ppo_mq"])
def test_trains_without_flash_attn_by_one_override(name: str, model_folder: Path):
    critic = f"critic.model.path={model_folder}"
    config = composed(name, *given(model_folder), critic, "platform=gpu_sdpa")
    for part in (config.actor_rollout_ref, config.critic):
        assert part.model.override_config.attn_implementation == "sdpa"
    assert config.actor_rollout_ref.model.use_fused_kernels and config.trainer.device == "cuda"
    assert check_verl(config, model_is_there=True) == []


def test_the_demo_is_the_same_on_a_gpu_but_for_the_platform(model_folder: Path):
    cpu, gpu = (composed("recipes/demo/grpo", *given(model_folder), f"platform={p}") for p in ("cpu", "gpu"))
    assert (cpu.trainer.device, gpu.trainer.device) == ("cpu", "cuda")
    for key in ("rag_r1", "algorithm", "reward.num_workers", "trainer.n_gpus_per_node", "trainer.v1.sampler"):
        assert OmegaConf.select(cpu, key) == OmegaConf.select(gpu, key), key
    rollouts = [config.actor_rollout_ref.rollout for config in (cpu, gpu)]
    for key in ("name", "n", "tensor_model_parallel_size", "max_model_len", "max_num_seqs", "agent"):
        assert rollouts[0][key] == rollouts[1][key], key
    assert check_verl(gpu, model_is_there=True) == []


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_a_replica_generates_what_it_is_given_at_once(name: str):
    config = composed(name)
    trajectories = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    assert trajectories / config.trainer.n_gpus_per_node <= config.actor_rollout_ref.rollout.max_num_seqs


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_validation_has_the_limits_of_the_published_evaluation(name: str, model_folder: Path):
    settings = check_rag_r1_keys(composed(name, *given(model_folder)))[0]
    training, validation = settings.budget(8192), settings.budget(8192, validation=True)
    assert (training.max_turns, training.max_turn_tokens) == (4, 500)
    assert (validation.max_turns, validation.max_turn_tokens) == (5, 1024)
    assert validation.max_query_observation_tokens == training.max_query_observation_tokens == 1000


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_our_block_is_right(name: str, model_folder: Path):
    config = composed(name, *given(model_folder))
    settings, problems = check_rag_r1_keys(config)
    assert problems == []
    assert isinstance(settings, RagR1Config)
    assert settings.protocol.name == config.rag_r1.protocol


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_holds_the_published_numbers(name: str, model_folder: Path):
    config = composed(name, *given(model_folder))
    found = {key: OmegaConf.select(config, key) for key in NUMBERS[name]}
    found = {k: OmegaConf.to_container(v) if OmegaConf.is_config(v) else v for k, v in found.items()}
    assert found == NUMBERS[name]


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_context_holds_a_whole_row(name: str, model_folder: Path):
    config = composed(name, *given(model_folder))
    row = config.data.max_prompt_length + config.data.max_response_length
    assert config.actor_rollout_ref.rollout.max_model_len == row


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_plugin_parts_are_named(name: str):
    config = composed(name)
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "search_agent"
    assert (config.reward.reward_manager.source, config.reward.reward_manager.name) == ("register", "search")


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_what_a_user_must_give_is_open_and_named(name: str):
    problems = check_required_keys(composed(name))
    assert {problem.where for problem in problems} == {
        "actor_rollout_ref.model.path",
        "data.train_files",
        "data.val_files",
        "rag_r1.retriever.url",
    }


def test_critic_starts_from_the_policys_model(model_folder: Path):
    config = composed("recipes/rag_r1/ppo_mq", *given(model_folder))
    assert config.critic.model.path == str(model_folder)


@pytest.mark.parametrize("override", ["rag_r1.agent.max_turn=3", "trainer.total_step=3", "data.batchsize=1"])
def test_unknown_key_is_refused_by_name(override: str):
    with pytest.raises(RecipeError, match=override.partition("=")[0]):
        composed("recipes/rag_r1/ppo_mq", override)


@pytest.mark.parametrize("path", RECIPES.rglob("*.yaml"), ids=lambda path: str(path.relative_to(RECIPES)))
def test_no_recipe_holds_an_address_or_an_absolute_path(path: Path):
    lines = [line.partition("#")[0] for line in path.read_text(encoding="utf-8").splitlines()]
    # A defaults list names config groups from the root: `- /platform: gpu`, `- override /model_engine: dp`.
    lines = [re.sub(r"^ *- (override )?/", "", line) for line in lines]
    assert [line for line in lines if "http" in line or " /" in line] == []


def test_the_gpu_recipes_are_among_the_shipped_ones():
    assert {name.removeprefix("recipes/") for name in GPU_RECIPES} <= set(shipped_names("train"))


def test_a_recipe_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(RecipeError, match=r"did you mean rag_r1/ppo_mq\?.*rag-r1 recipes"):
        Recipe.find("recipes/rag_r1/ppo_m")


def test_a_recipe_of_ones_own_finds_the_shipped_fragments(tmp_path: Path, model_folder: Path):
    own = tmp_path / "mine.yaml"
    lines = ["# @package _global_", "defaults: [/ppo_trainer, /rag_r1/_ppo, _self_]"]
    lines += ["rag_r1: {protocol: rag_r1_sq}", "data: {train_batch_size: 1024}"]
    own.write_text("\n".join(lines))
    recipe = Recipe.find(str(own))
    config = compose_recipe(recipe, given(model_folder))
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


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_a_ray_that_a_run_starts_for_itself_has_no_dashboard(name, model_folder):
    """Ray's own default is one that asks for no password."""
    settings = composed(name, *given(model_folder)).ray_kwargs.ray_init
    assert (settings.include_dashboard, settings.dashboard_host) == (False, "127.0.0.1")
