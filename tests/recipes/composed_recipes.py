"""A recipe with what a user gives to it, composed as `rag-r1 train` does, once for all tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rag_r1.train import Recipe, compose_recipe


def given(model: Path) -> list[str]:
    """What a user gives: nothing else may be open in a recipe."""
    return [
        f"actor_rollout_ref.model.path={model}",
        "data.train_files=train.parquet",
        "data.val_files=test.parquet",
        "rag_r1.retriever.url=http://127.0.0.1:8000",
    ]


@cache
def composed(name: str, *overrides: str) -> DictConfig:
    config = compose_recipe(Recipe.find(name), overrides)
    OmegaConf.set_readonly(config, True)
    return config
