"""The pretraining of the pipeline's base: a training that was killed ends as one that was not."""

from __future__ import annotations

import pytest
import torch

from rag_r1.demo import phase_trainer
from rag_r1.demo.pipeline import pretrain
from rag_r1.demo.pipeline.arguments import BASE_STEPS
from rag_r1.demo.pipeline.pretraining_data import name_tokens, pipeline_protocol, pretraining_tokenizer
from rag_r1.demo.policy import load_policy

PROTOCOL = pipeline_protocol("rag_r1_mq")


class Killed(Exception):
    pass


def test_the_phases_have_the_steps_that_were_asked_for():
    for steps in (2, 3, 10, pretrain.STEPS):
        first, second = pretrain.phases_of(steps)
        assert first.steps + second.steps == steps
        assert all(phase.warmup < phase.steps for phase in (first, second))
    assert [phase.steps for phase in pretrain.phases_of(pretrain.STEPS)] == [1200, 900]
    assert BASE_STEPS == pretrain.STEPS
    with pytest.raises(ValueError, match="at least 2"):
        pretrain.phases_of(1)


def test_what_is_shown_is_learned_for_its_names_only():
    tokenizer = pretraining_tokenizer(PROTOCOL)
    names = name_tokens(tokenizer)
    words = set()
    for ids, mask in pretrain.rows_of(tokenizer, PROTOCOL, 0, 0, 100):
        for place, weight in enumerate(pretrain.weights_of(ids, mask, names)):
            if mask[place]:
                assert weight == 1.0
            elif weight:
                assert ids[place] in names and ids[place] in ids[:place]
                words.add(tokenizer.decode(ids[place]))
    assert len(words) > 20


@pytest.mark.slow
@pytest.mark.parametrize("at", [(0, 2), pytest.param((1, 1), marks=pytest.mark.full)])
def test_a_killed_pretraining_goes_on_to_the_same_weights(tmp_path, monkeypatch, at):
    monkeypatch.setattr(phase_trainer, "SAVE_INTERVAL", 1)
    made = pretrain.rows_of
    pretrain.pretrain(tmp_path / "whole", PROTOCOL, 0, 6)
    taken: list[tuple[int, int]] = []

    def rows_of(tokenizer, protocol, seed, phase, step):
        if (phase, step) == at and at not in taken:
            taken.append(at)
            raise Killed
        taken.append((phase, step))
        return made(tokenizer, protocol, seed, phase, step)

    monkeypatch.setattr(pretrain, "rows_of", rows_of)
    with pytest.raises(Killed):
        pretrain.pretrain(tmp_path / "killed", PROTOCOL, 0, 6)
    assert (tmp_path / "killed" / pretrain.PROGRESS).exists()
    pretrain.pretrain(tmp_path / "killed", PROTOCOL, 0, 6)
    assert len(taken) == 6 + 1 and len(set(taken)) == 6  # no step is taken again but the one that was cut off
    whole, killed = (load_policy(tmp_path / name)[0].state_dict() for name in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    assert not (tmp_path / "killed" / pretrain.PROGRESS).exists()
    pretrain.pretrain(tmp_path / "killed", PROTOCOL, 0, 6)  # nothing is left to do
    assert len(taken) == 7
