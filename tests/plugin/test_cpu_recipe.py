"""recipes/platform/cpu.yaml over veRL's defaults: it composes, veRL accepts it, no key of it is misspelt."""

from __future__ import annotations

from pathlib import Path

import pytest
import verl.trainer
from omegaconf import DictConfig, OmegaConf
from transformers import Qwen2Config
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from rag_r1.recipe_files import RECIPES, Recipe
from rag_r1.train import compose_recipe

pytestmark = pytest.mark.slow  # a composed recipe takes most of a second


# Keys that veRL reads and its own YAML does not have.
NEW_KEYS = (
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "critic.fsdp.mixed_precision",
    "critic.model.override_config",
    "actor_rollout_ref.model.override_config",
    "actor_rollout_ref.rollout.enable_sleep_mode",
    "actor_rollout_ref.rollout.engine_kwargs.vllm",
    "ray_kwargs.ray_init",
    "trainer.v1.sampler.sampler_kwargs",
)


@pytest.fixture
def recipe(tmp_path):
    """Composes a recipe of veRL's trainer and one platform."""

    def compose_with(platform: str, *overrides: str) -> DictConfig:
        (tmp_path / "recipe.yaml").write_text(
            "defaults: [ppo_trainer, platform: cpu, _self_]\n"
            "trainer: {logger: [console]}\ndata: {train_batch_size: 16}\n"
            "actor_rollout_ref: {actor: {ppo_mini_batch_size: 16, ppo_micro_batch_size_per_gpu: 4},"
            " rollout: {log_prob_micro_batch_size_per_gpu: 4}}\n"
            "critic: {ppo_micro_batch_size_per_gpu: 4}\n"
        )
        return compose_recipe(Recipe.find(tmp_path / "recipe"), [f"platform={platform}", *overrides])

    return compose_with


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_verl_accepts_the_cpu_platform(recipe, estimator, tmp_path):
    Qwen2Config(architectures=["Qwen2ForCausalLM"]).save_pretrained(tmp_path / "model")
    config = recipe(
        "cpu",
        f"algorithm.adv_estimator={estimator}",
        f"critic.model.path={tmp_path / 'model'}",
        "+critic.model.load_tokenizer=false",
    )
    validate_config(config, need_reference_policy(config), need_critic(config))
    assert config.ray_kwargs.ray_init.num_gpus == config.trainer.n_gpus_per_node == 1
    for engine in (config.actor_rollout_ref.actor.fsdp_config, config.critic.fsdp):
        assert (engine.strategy, engine.mixed_precision.param_dtype) == ("fsdp2", "fp32")


def test_the_platform_is_one_word_on_the_command_line(recipe):
    assert recipe("gpu").trainer.device == "cuda"
    assert recipe("gpu").actor_rollout_ref.actor.strategy == "fsdp"


def test_every_key_of_the_cpu_platform_exists_in_verl():
    theirs = OmegaConf.load(Path(verl.trainer.__file__).parent / "config" / "_generated_ppo_trainer.yaml")
    ours = OmegaConf.load(RECIPES / "platform" / "cpu.yaml")
    assert [key for key in leaves(ours) if not key.startswith(NEW_KEYS) and not holds(theirs, key)] == []


def leaves(config: DictConfig, prefix: str = "") -> list[str]:
    """The dotted keys of all leaves."""
    keys = []
    for key, value in OmegaConf.to_container(config, resolve=False).items():
        path = f"{prefix}{key}"
        keys += leaves(config[key], f"{path}.") if isinstance(value, dict) and value else [path]
    return keys


def holds(config: DictConfig, key: str) -> bool:
    """Whether the key is there, whatever its value."""
    node = OmegaConf.to_container(config, resolve=False)
    for name in key.split("."):
        if not isinstance(node, dict) or name not in node:
            return False
        node = node[name]
    return True
