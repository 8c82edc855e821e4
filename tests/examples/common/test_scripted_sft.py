"""Supervised training on scripted episodes: made once, resumed after a kill with the same result."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from examples.agentic_r.warm_start import PROTOCOL, WARM, warm_start
from examples.common.scripted_sft import loss_weights, train_policy
from rag_r1.agent import TrainingRow
from rag_r1.demo import phase_trainer
from rag_r1.demo.policy import load_policy, policy_path

pytestmark = pytest.mark.slow  # a policy is loaded

TWO = replace(WARM, steps=4, warmup=1)


def rows(step: int) -> list:
    return [([5 + step, 7, 9, 11, 7], [0.0, 1.0, 1.0, 1.0, 1.0])]


class Killed(RuntimeError):
    pass


def test_a_killed_training_goes_on_and_ends_with_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(phase_trainer, "SAVE_INTERVAL", 2)

    def killed(step: int) -> list:
        if step == 3:
            raise Killed
        return rows(step)

    whole = train_policy(tmp_path / "whole", *load_policy(policy_path(PROTOCOL)), TWO, rows)
    with pytest.raises(Killed):
        train_policy(tmp_path / "cut", *load_policy(policy_path(PROTOCOL)), TWO, killed)
    assert not (tmp_path / "cut").exists()
    cut = train_policy(tmp_path / "cut", *load_policy(policy_path(PROTOCOL)), TWO, rows)
    first, second = (load_policy(folder)[0].state_dict() for folder in (whole, cut))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut", "whole"]


def test_what_the_script_wrote_weighs_most_and_what_it_read_again_less():
    row = TrainingRow([3, 4], [4, 5, 3], [0, 1, 0], [0.0, -1.0, 0.0])
    ids, weights = loss_weights(row, frozenset({3, 4}))
    assert ids == [3, 4, 4, 5, 3]
    assert weights == [0.0, 0.0, 0.5, 1.0, 0.5]
    assert loss_weights(row, frozenset())[1] == [0.0, 0.0, 0.0, 1.0, 0.0]


def test_the_warm_start_is_made_once(tmp_path):
    folder = warm_start(tmp_path / "warm", TWO, TWO)
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert warm_start(folder, TWO, TWO) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    assert sorted(path.name for path in tmp_path.iterdir()) == ["warm", "warm-base"]
