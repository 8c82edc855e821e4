"""A trajectory whose context is rewritten, as veRL gets it: one output for each training row."""

from __future__ import annotations

import pytest
import torch
import yaml
from omegaconf import open_dict

from tests.plugin.scripted_loop import config, play, score

SEARCH, ANSWER = "<search> a </search>", "<answer> x </answer>"
SUMMARY = "<summary> a is a fact </summary>"


@pytest.fixture
def cfg(tmp_path):
    path = tmp_path / "memory.yaml"
    blocks = {"summary": {"tags": ["<summary>", "</summary>"], "role": "summary"}}
    path.write_text(yaml.safe_dump({"extends": "rag_r1_sq", "name": "memory", "blocks": blocks}))
    return config(protocol=str(path), agent={"max_turns": 4, "max_turn_tokens": 100})


def test_each_row_is_what_the_engine_saw_and_the_last_has_the_record(tokenizer, cfg):
    outputs, client = play(tokenizer, [SEARCH, SUMMARY, ANSWER], cfg)
    first, second = outputs
    assert tokenizer.decode(first.prompt_ids) == "Who?"
    assert tokenizer.decode(second.prompt_ids) == f"Who?{SUMMARY}"
    assert tokenizer.decode(second.response_ids) == ANSWER and set(second.response_mask) == {1}
    assert first.response_mask.count(0) > 0 and len(first.response_logprobs) == len(first.response_ids)
    contexts = [ids for _, ids, _ in client.requests]
    assert contexts[1] == (first.prompt_ids + first.response_ids)[: len(contexts[1])]
    assert contexts[2] == second.prompt_ids
    assert "trajectory" not in first.extra_fields
    assert [turn["row"] for turn in second.extra_fields["trajectory"]["turns"]] == [0, 0, 1]
    assert score(tokenizer, second, cfg)["reward_score"] == 1.0


def test_times_are_counted_once_and_every_row_has_the_weight_versions_of_the_trajectory(tokenizer, cfg):
    (first, second), _ = play(tokenizer, [SEARCH, SUMMARY, ANSWER], cfg)
    assert first.metrics.generate_sequences == 0.0 < second.metrics.generate_sequences
    for output in (first, second):
        span = (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"])
        assert span == (1, 3) and output.num_turns == second.num_turns


def per_turn(trajectory, golds):
    return [0.25, 0.5, 1.0]


def test_with_turn_loo_each_row_has_the_rewards_of_its_turns(tokenizer, cfg):
    with open_dict(cfg):
        cfg.algorithm = {"adv_estimator": "turn_loo"}
        cfg.rag_r1.reward = [{"term": f"{__name__}:per_turn", "weight": 1.0}]
    outputs, _ = play(tokenizer, [SEARCH, SUMMARY, ANSWER], cfg)
    result = score(tokenizer, outputs[-1], cfg)
    rewards = []
    for output in outputs:  # as veRL's worker does: all have the score of the last
        output.reward_score = result["reward_score"]
        output.extra_fields["reward_extra_info"] = result["reward_extra_info"]
        row = output.as_dict()
        assert not {"turn_ends", "row_number", "trajectory"} & set(row["extra_fields"])
        rewards.append(row["rm_scores"])
        assert not rewards[-1][torch.tensor(output.response_mask) == 0].any()
    assert [row[row != 0].tolist() for row in rewards] == [[0.25, 0.5], [1.0]]


def test_all_rows_of_a_masked_trajectory_are_masked(tokenizer, cfg):
    outputs, _ = play(tokenizer, [SUMMARY, "<search> fail </search>"], cfg)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    assert len(outputs) == 2 and not any(bit for output in outputs for bit in output.response_mask)


def test_without_a_rewriting_there_is_one_output(tokenizer, cfg):
    output, _ = play(tokenizer, [ANSWER], cfg)
    assert not isinstance(output, list) and output.extra_fields["trajectory"]["status"] == "answered"
