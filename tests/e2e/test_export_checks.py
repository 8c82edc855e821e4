"""The checks of an exported model notice when something in its folder is wrong.

The folder here is the demo's warm start, saved as veRL's merger saves a model.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rag_r1.demo.policy import policy_path
from tests.e2e import export_checks
from tests.e2e.export_checks import a_step_changed_the_policy, it_is_the_same_model
from tests.e2e.mutations import change_tensors, checks_of, copy_tokenizer, never_failing

POLICY = policy_path("rag_r1_mq")
LAST = "model.layers.3.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(POLICY).state_dict()


def two_layers_swapped(folder: Path) -> None:
    first = LAST.replace("3", "0")

    def swap(tensors: dict[str, torch.Tensor]) -> None:
        tensors[LAST], tensors[first] = tensors[first], tensors[LAST]

    change_tensors(folder, swap)


def one_layer_less(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["num_hidden_layers"] -= 1
    config["layer_types"].pop()
    path.write_text(json.dumps(config))


without_a_norm = partial(change_tensors, change=lambda tensors: tensors.pop("model.norm.weight"))
MUTATIONS = {
    "a weight is another": partial(change_tensors, change=lambda tensors: tensors[LAST][0].add_(0.125)),
    "a matrix is missing": partial(change_tensors, change=lambda tensors: tensors.pop(LAST)),
    "a norm is missing": without_a_norm,
    "two layers are swapped": two_layers_swapped,
    "a layer is missing": one_layer_less,
    "the tokenizer is another": partial(copy_tokenizer, "r1_searcher"),
}


@pytest.fixture(scope="module")
def failure(weights, tmp_path_factory) -> Callable[..., BaseException]:
    """How the check fails once an exported folder is changed; each change is tried once."""

    @cache
    def failure(change: Callable[[Path], None]) -> BaseException:
        folder = Path(shutil.copytree(POLICY, tmp_path_factory.mktemp("changed") / "exported"))
        change(folder)
        with pytest.raises(AssertionError) as raised:
            it_is_the_same_model(folder, weights, POLICY)
        return raised.value

    return failure


def test_the_model_itself_passes(weights):
    it_is_the_same_model(POLICY, weights, POLICY)


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_is_wrong_is_noticed(failure, name):
    failure(MUTATIONS[name])


def test_a_norm_as_a_new_model_has_it_is_missed_too(tmp_path, weights):
    folder = Path(shutil.copytree(POLICY, tmp_path / "exported"))
    without_a_norm(folder)
    new = {**weights, "model.norm.weight": torch.ones_like(weights["model.norm.weight"])}
    with pytest.raises(AssertionError):
        it_is_the_same_model(folder, new, POLICY)


def test_every_assertion_of_a_check_fails_at_some_mutation(failure, weights):
    a_step_changed_the_policy({**weights, LAST: weights[LAST] + 1e-6}, weights)
    with pytest.raises(AssertionError) as raised:
        a_step_changed_the_policy(dict(weights), weights)
    assert not never_failing(export_checks, [*map(failure, MUTATIONS.values()), raised.value])
    assert checks_of(export_checks) == {it_is_the_same_model, a_step_changed_the_policy}
