"""A recipe with what a user gives to it, composed as `rag-r1 train` does, once for all tests."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from io import StringIO
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from rag_r1.config.recipes import Recipe
from rag_r1.training.command import compose_recipe

_load = OmegaConf.load
_parse = cache(lambda text: _load(StringIO(text)))


def given(model: Path) -> list[str]:
    """What a user gives: nothing else may be open in a recipe."""
    return [
        f"actor_rollout_ref.model.path={model}",
        "data.train_files=train.parquet",
        "data.val_files=test.parquet",
        "rag_r1.retriever.url=http://127.0.0.1:8000",
    ]


def _load_once(file: IO[str] | str | Path) -> Any:
    """As OmegaConf.load, but what has been parsed before is not parsed again."""
    if isinstance(file, str | Path):
        return deepcopy(_parse(Path(file).read_text(encoding="utf-8")))
    begin, text = file.tell(), file.read()
    try:
        return deepcopy(_parse(text))
    except YAMLError:
        file.seek(begin)
        return _load(file)  # the error names the file


def compose_quickly(name: str, overrides: Sequence[str]) -> DictConfig:
    """As `compose_recipe`. Most of its time goes into parsing the thirty files that all recipes share."""
    with patch.object(OmegaConf, "load", _load_once):
        return compose_recipe(Recipe.find(name), overrides)


@cache
def composed(name: str, *overrides: str) -> DictConfig:
    config = compose_quickly(name, overrides)
    OmegaConf.set_readonly(config, True)
    return config
