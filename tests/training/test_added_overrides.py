"""What `rag-r1 train` adds to the user's overrides."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from rag_r1.system.cores import usable_cores
from rag_r1.training.added_overrides import added_overrides
from tests.recipes.composed_recipes import composed

KEY = "ray_kwargs.ray_init.runtime_env.env_vars.OMP_NUM_THREADS"


def threads(*overrides: str, recipe: str = "recipes/demo/grpo") -> str | None:
    config = composed(recipe, *overrides)
    return OmegaConf.select(composed(recipe, *overrides, *added_overrides(config, overrides)), KEY)


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def of_size(size: int) -> str:
        with (tmp_path / "model.safetensors").open("wb") as weights:
            weights.truncate(size)
        return f"actor_rollout_ref.model.path={tmp_path}"

    return of_size


def test_on_a_cpu_vllm_has_all_cores_for_a_real_model_and_a_single_one_for_a_tiny_one(model):
    """Ray would give both one thread."""
    assert threads(model(200 << 20)) == str(usable_cores())
    assert threads(model(1000)) == "1"


def test_a_number_of_threads_that_the_user_has_set_is_kept(model, monkeypatch):
    assert threads(model(1000), f"++{KEY}='7'") == "7"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads(model(1000)) == "5"
    for no_number in ("0", "²"):
        monkeypatch.setenv("OMP_NUM_THREADS", no_number)
        assert threads(model(1000)) == "1"


def test_on_gpus_the_number_of_threads_is_left_alone(model):
    assert threads(model(1000), "platform=gpu") is None
