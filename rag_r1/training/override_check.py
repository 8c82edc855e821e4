"""Checks the overrides of a training that a command starts later, when it has made its data.

The training's own preflight needs that data, and the training of `rag-r1 demo` has no preflight. So the
command checks what the recipe and the overrides say by themselves: keys, types, numbers, and the block
`rag_r1`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rag_r1.config.recipes import Recipe
from rag_r1.options.problems import PreflightReport
from rag_r1.runs.start_checks import StartError
from rag_r1.training.composition import check_composition

if TYPE_CHECKING:
    from omegaconf import DictConfig


def check_overrides(recipe: Recipe, overrides: Sequence[str]) -> DictConfig:
    """Returns the whole configuration. Raises StartError with all wrong overrides, or RunError if the recipe
    does not compose without them. A recipe without overrides is only composed: types are veRL's, whose import
    takes half a minute on a busy machine."""
    config = check_composition(recipe, overrides)
    if not overrides:
        return config
    from rag_r1.training.preflight import NUMBERS, sft
    from rag_r1.training.preflight.settings import check_rag_r1_keys, wrong_types

    if "rag_r1" in config:
        problems = [*wrong_types(config, NUMBERS), *check_rag_r1_keys(config)[1]]
    else:
        problems = wrong_types(config, sft.NUMBERS)
    if sentences := PreflightReport(problems).sentences:
        raise StartError(sentences)
    return config
