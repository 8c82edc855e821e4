"""What the reward manager makes of a trajectory of the agent loop, and the records that it writes."""

from __future__ import annotations

import asyncio
import json

import numpy as np
from verl import DataProto

from rag_r1.plugin.reward_manager import SearchRewardManager, golds_of
from tests.plugin.scripted_loop import config, play, score


def test_the_reward_is_logged_term_by_term_with_how_the_episode_went(tokenizer):
    output, _ = play(tokenizer, ["<search> a, A!, b </search>", "<answer> The X. </answer>"])
    reward = [{"term": "em", "weight": 2.0}, {"term": "f1", "weight": 1.0}]
    result = score(tokenizer, output, config(reward=reward))
    info = result["reward_extra_info"]
    assert result["reward_score"] == info["score"] == 3.0
    expected = {"em": 1.0, "f1": 1.0, "turns": 2.0, "searches": 3.0, "repeated_queries": 1.0, "answered": 1.0}
    assert {key: info[key] for key in expected} == expected


def test_a_row_without_golds_scores_zero_and_does_not_raise(tokenizer):
    output, _ = play(tokenizer, ["<answer> x </answer>"])
    for broken in (None, {}, {"ground_truth": None}, {"ground_truth": {"target": []}}):
        assert score(tokenizer, output, config(), reward_model=broken)["reward_score"] == 0.0


def test_golds_are_read_as_a_string_or_a_list():
    for truth in ("x", ["x"], {"target": "x"}, {"target": np.array(["x"], dtype=object)}):
        assert golds_of({"ground_truth": truth}) == ["x"]


def test_trajectories_are_dumped_as_json_lines_by_split_and_step(tokenizer, tmp_path):
    output, _ = play(tokenizer, ["<answer> x </answer>"])
    cfg = config(trajectory_dir=str(tmp_path))
    for split in ("train", "../evil"):
        score(tokenizer, output, cfg, extra_info={"split": split}, data_source="demo/one_hop")
    (train,) = (tmp_path / "train").glob("step_000007-*.jsonl")
    record = json.loads(train.read_text())
    assert (record["golds"], record["rewards"]["em"]) == (["x"], 1.0)
    assert record["data_source"] == "demo/one_hop"
    assert {path.parent for path in tmp_path.rglob("*.jsonl")} == {tmp_path / "train", tmp_path / "___evil"}


def test_a_dump_that_cannot_be_written_does_not_end_the_run(tokenizer, tmp_path):
    (tmp_path / "file").write_text("")
    output, _ = play(tokenizer, ["<answer> x </answer>"])
    assert score(tokenizer, output, config(trajectory_dir=str(tmp_path / "file")))["reward_score"] == 1.0


def test_the_data_proto_that_verl_sends_has_the_fields_that_are_read(tokenizer):
    output, _ = play(tokenizer, ["<answer> x </answer>"])
    fields = np.empty(1, dtype=object)
    fields[0] = output.extra_fields
    truth = np.array([{"ground_truth": {"target": ["x"]}}], dtype=object)
    data = DataProto(non_tensor_batch={"tool_extra_fields": fields, "reward_model": truth})
    manager = SearchRewardManager(config(), tokenizer, None)
    assert asyncio.run(manager.run_single(data))["reward_score"] == 1.0


def test_trajectories_are_their_owners(tokenizer, tmp_path):
    output, _ = play(tokenizer, ["<answer> x </answer>"])
    score(tokenizer, output, config(trajectory_dir=str(tmp_path / "records")))
    (written,) = (tmp_path / "records").rglob("*.jsonl")
    assert written.stat().st_mode & 0o777 == 0o600 and written.parent.stat().st_mode & 0o777 == 0o700
