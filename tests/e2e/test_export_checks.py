"""The checks of an exported model notice when something in its folder is wrong.

The folder here is the demo's warm start, saved as veRL's merger saves a model.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rag_r1.demo.policy import policy_path
from tests.e2e import export_checks
from tests.e2e.export_checks import a_step_changed_the_policy, it_is_the_same_model
from tests.e2e.made_runs import checks_of, never_failing

POLICY = policy_path("rag_r1_mq")
LAST = "model.layers.3.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(POLICY).state_dict()


@pytest.fixture
def exported(tmp_path) -> Path:
    return Path(shutil.copytree(POLICY, tmp_path / "exported"))


def change_tensors(folder: Path, change) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def shift_a_weight(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors[LAST][0].add_(0.125))


def without_a_matrix(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.pop(LAST))


def without_a_norm(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.pop("model.norm.weight"))


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


def another_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(policy_path("r1_searcher") / name, folder)


SPOILINGS = {
    "a weight is another": shift_a_weight,
    "a matrix is missing": without_a_matrix,
    "a norm is missing": without_a_norm,
    "two layers are swapped": two_layers_swapped,
    "a layer is missing": one_layer_less,
    "the tokenizer is another": another_tokenizer,
}


def test_the_model_itself_passes(exported, weights):
    it_is_the_same_model(exported, weights, POLICY)


@pytest.mark.parametrize("what", SPOILINGS)
def test_what_is_wrong_is_noticed(exported, weights, what):
    SPOILINGS[what](exported)
    with pytest.raises(AssertionError):
        it_is_the_same_model(exported, weights, POLICY)


def test_a_norm_as_a_new_model_has_it_is_missed_too(exported, weights):
    new = {**weights, "model.norm.weight": torch.ones_like(weights["model.norm.weight"])}
    without_a_norm(exported)
    with pytest.raises(AssertionError):
        it_is_the_same_model(exported, new, POLICY)


def test_a_step_without_an_update_is_noticed(weights):
    changed = {**weights, LAST: weights[LAST] + 1e-6}
    a_step_changed_the_policy(changed, weights)
    with pytest.raises(AssertionError):
        a_step_changed_the_policy(dict(weights), weights)


def test_every_assertion_of_a_check_fails_at_some_spoiling(tmp_path, weights):
    failures = []
    for i, spoil in enumerate(SPOILINGS.values()):
        folder = Path(shutil.copytree(POLICY, tmp_path / str(i)))
        spoil(folder)
        with pytest.raises(AssertionError) as failure:
            it_is_the_same_model(folder, weights, POLICY)
        failures.append(failure.value)
    with pytest.raises(AssertionError) as failure:
        a_step_changed_the_policy(weights, weights)
    assert not never_failing(export_checks, [*failures, failure.value])


def test_no_check_is_left_out():
    assert checks_of(export_checks) == {it_is_the_same_model, a_step_changed_the_policy}
