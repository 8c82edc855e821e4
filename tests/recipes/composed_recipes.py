"""Recipes with the values of a user, composed as `rag-r1 train` does, once for all tests; and what the
preflight says of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from functools import cache
from io import StringIO
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

from omegaconf import DictConfig, OmegaConf, open_dict
from yaml import YAMLError

from rag_r1.config.recipes import Recipe
from rag_r1.options.problems import plain
from rag_r1.training.composition import compose_recipe
from rag_r1.training.preflight.model import check_quantisation
from rag_r1.training.preflight.sampler import check_filtering, check_group_size, check_sampler
from rag_r1.training.preflight.sessions import check_sessions
from rag_r1.training.preflight.settings import (
    check_lengths,
    check_log_probs,
    check_rag_r1_keys,
    check_required_keys,
)
from rag_r1.training.preflight.verls_keys.validation import check_verl

_load = OmegaConf.load
_parse = cache(lambda text: _load(StringIO(text)))


def user_values(model: Path) -> list[str]:
    """The overrides of a user: nothing else may be open in a recipe."""
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


def changed(config: DictConfig, **values: Any) -> DictConfig:
    """A copy that can be changed, with these values; in a key `__` stands for a dot."""
    config = deepcopy(config)
    OmegaConf.set_readonly(config, False)
    with open_dict(config):
        for key, value in values.items():
            OmegaConf.update(config, key.replace("__", "."), value)
    return config


def values_of(config: DictConfig, keys: Iterable[str]) -> dict[str, Any]:
    """The values of these keys, as plain types."""
    return {key: plain(OmegaConf.select(config, key)) for key in keys}


def refusals(config: DictConfig) -> list[str]:
    """What the preflight says of the settings of a training whose model is there."""
    settings, problems = check_rag_r1_keys(config)
    for check in (check_required_keys, check_lengths, check_log_probs, check_sampler, check_quantisation):
        problems += check(config)
    problems += check_sessions(config, settings)
    problems += [*check_group_size(config), *check_filtering(config, settings)]
    problems += check_verl(config, has_model=True)
    return list(map(str, problems))
