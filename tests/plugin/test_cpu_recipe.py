"""The CPU platforms over veRL's defaults: they compose, and veRL accepts them."""

from __future__ import annotations

import pytest
from omegaconf import DictConfig
from transformers import Qwen2Config
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from rag_r1.config.recipes import Recipe
from rag_r1.plugin.cpu.packed_attention import PACKED_SDPA
from rag_r1.training.composition import compose_recipe

pytestmark = pytest.mark.slow  # a composed recipe takes most of a second


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
@pytest.mark.parametrize(
    ("platform", "attention", "dtype"),
    [("cpu", "sdpa", "fp32"), ("cpu_packed", PACKED_SDPA, "fp32"), ("cpu_bf16", PACKED_SDPA, "bf16")],
)
def test_verl_accepts_the_cpu_platforms(recipe, platform, attention, dtype, estimator, tmp_path):
    Qwen2Config(architectures=["Qwen2ForCausalLM"]).save_pretrained(tmp_path / "model")
    config = recipe(
        platform,
        f"algorithm.adv_estimator={estimator}",
        f"critic.model.path={tmp_path / 'model'}",
        "+critic.model.load_tokenizer=false",
    )
    validate_config(config, need_reference_policy(config), need_critic(config))
    assert config.ray_kwargs.ray_init.num_gpus == config.trainer.n_gpus_per_node == 1
    for engine in (config.actor_rollout_ref.actor.fsdp_config, config.critic.fsdp):
        precision = engine.mixed_precision
        assert (engine.strategy, engine.model_dtype) == ("fsdp2", "fp32")
        assert (precision.param_dtype, precision.reduce_dtype) == (dtype, "fp32")
    for model in (config.actor_rollout_ref.model, config.critic.model):
        assert model.override_config.attn_implementation == attention
        assert model.use_remove_padding == (platform != "cpu")


def test_the_platform_is_one_word_on_the_command_line(recipe):
    assert recipe("gpu").trainer.device == "cuda"
    assert recipe("gpu").actor_rollout_ref.actor.strategy == "fsdp"
