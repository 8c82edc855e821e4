"""The sampler over veRL's own replay buffer, with a store in memory (store_in_memory.py)."""

from __future__ import annotations

import pytest
import torch

from rag_r1.plugin.sampler import search_metrics
from tests.plugin.store_in_memory import rewards_of, row, sample


def test_a_batch_without_failures_is_handed_on_as_it_is_with_its_metrics(make):
    buffer = make([1.0, 1.0], group_size=2)
    batch, metrics = sample(buffer, 1)
    assert batch.keys == ["prompt0_0_0", "prompt0_1_0"] == list(buffer.store.rows["train"])
    assert metrics["search/em"] == 1
    assert metrics["search/left_out"] == metrics["search/lost"] == metrics["search/masked"] == 0


def test_masked_trajectories_leave_the_batch_and_the_store_and_are_counted(make):
    buffer = make([1.0, None, 1.0], [None, 1.0, None], group_size=3)
    batch, metrics = sample(buffer, 2)
    assert batch.keys == ["prompt0_0_0", "prompt0_2_0"] == list(buffer.store.rows["train"])
    assert len(batch.tags) == 2
    assert metrics["search/masked"] == pytest.approx(3 / 6) and metrics["search/left_out"] == 4
    assert metrics["search/em"] == 1.0, "what is not known is left out of a mean"


def test_trajectories_that_never_arrived_are_counted(make):
    buffer = make([1.0, 1.0], group_size=8)
    assert sample(buffer, 1)[1]["search/lost"] == 6


def test_trajectories_are_counted_and_not_their_rows(make):
    buffer = make([1.0, None, 0.0], group_size=4, rows_of_each=2)
    buffer.rollout.start(1)
    for i in range(3):  # the right one has three more rows
        buffer.store.put("train", f"prompt0_0_{2 + i}", {"seq_len": 2}, **row(1.0))
    batch, metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=1)
    assert len(batch.keys) == 5 + 2 == len(buffer.store.rows["train"])
    assert {key.rpartition("_")[0] for key in batch.keys} == {"prompt0_0", "prompt0_2"}
    assert metrics["search/samples"] == 3 and metrics["search/em"] == pytest.approx(1 / 2)
    assert metrics["search/masked"] == pytest.approx(1 / 3)
    assert metrics["search/left_out"] == 1 and metrics["search/lost"] == 1


def test_a_row_in_which_nothing_was_generated_leaves_its_trajectory(make):
    buffer = make([1.0, 0.0], group_size=2, rows_of_each=2)
    buffer.rollout.start(1)
    buffer.store.rows["train"]["prompt0_1_1"]["response_mask"] = torch.tensor([0, 0])
    batch, metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=1)
    assert batch.keys == ["prompt0_0_0", "prompt0_0_1", "prompt0_1_0"] == list(buffer.store.rows["train"])
    assert metrics["search/samples"] == 2 and metrics["search/left_out"] == 0


def test_a_trajectory_without_any_generated_token_keeps_its_vote(make):
    buffer = make([1.0, 0.0], group_size=2, rows_of_each=2)
    buffer.rollout.start(1)
    for key in ("prompt0_1_0", "prompt0_1_1"):
        buffer.store.rows["train"][key]["response_mask"] = torch.tensor([0, 0])
    batch, _ = buffer.sample(global_steps=1, partition_id="train", batch_size=1)
    assert batch.keys == ["prompt0_0_0", "prompt0_0_1", "prompt0_1_1"]


def test_the_reward_of_a_row_of_several_stands_on_a_generated_token(make):
    buffer = make([1.0], group_size=1, rows_of_each=2)
    buffer.rollout.start(1)
    buffer.store.rows["train"]["prompt0_0_0"]["response_mask"] = torch.tensor([1, 0])
    buffer.sample(global_steps=1, partition_id="train", batch_size=1)
    rewards = {key: row["rm_scores"].tolist() for key, row in buffer.store.rows["train"].items()}
    assert rewards == {"prompt0_0_0": [1.0, 0.0], "prompt0_0_1": [0.0, 1.0]}


def test_a_batch_of_which_nothing_is_left_is_generated_anew(make):
    buffer = make([None], [None], [1.0])
    batch, metrics = sample(buffer, 1)
    assert batch.keys == ["prompt2_0_0"] == list(buffer.store.rows["train"])
    assert buffer.rollout.requested == [1, 1] and metrics["search/refilled_batches"] == 2


def test_a_failure_that_stays_ends_the_run_and_says_which(make):
    buffer = make([None], [None], [None], refills=2)
    with pytest.raises(RuntimeError, match="'failed_retriever': 3.*resumes from its last checkpoint"):
        sample(buffer, 1)
    assert buffer.rollout.requested == [1, 1] and not buffer.store.rows["train"]


def test_a_validation_without_failures_is_not_touched(make):
    buffer = make([0.0, 1.0])
    batch, metrics = sample(buffer, 1, "val")
    assert batch.keys == ["prompt0_0_0", "prompt0_1_0"] and metrics == {}
    assert rewards_of(buffer, batch) == {"prompt0": [0.0, 1.0]}


def test_verls_settings_that_do_not_reach_a_custom_sampler_are_taken_from_its_keys(make):
    filters = {"enable": True, "metric": "em", "max_inflight_gen_batches": 3}
    buffer = make(
        poll_interval=0.1, sync_refill_failed_groups=True, filter_groups=filters, train_batch_size=4
    )  # fmt: skip
    assert buffer.poll_interval == 0.1 and buffer.sync_refill_failed_groups
    assert (buffer.filter_groups_metric, buffer.max_inflight_gen_batches) == ("em", 3)
    assert (buffer.train_batch_size, buffer.gen_batch_size) == (4, 1)


def test_without_them_verls_buffer_filters_nothing(make):
    buffer = make([1.0, 1.0], filter_groups={"enable": False, "metric": "reward"}, train_batch_size=4)
    assert buffer.filter_groups_metric is None and not buffer.sync_refill_failed_groups
    assert rewards_of(buffer, sample(buffer, 1)[0]) == {"prompt0": [1.0, 1.0]}


def test_the_scores_of_each_source_and_the_differences_within_groups_are_logged(make):
    buffer = make([1.0, 0.0], [1.0, 1.0], [0.0, None], group_size=2)
    _, metrics = sample(buffer, 3)
    assert metrics["search/score/demo"] == pytest.approx(3 / 5)
    # Of three groups one has two different rewards, one has equal ones, and one a single reward.
    assert metrics["search/group_deviation"] == pytest.approx(0.25)
    assert metrics["search/groups_without_signal"] == pytest.approx(0.5)


def test_the_share_of_valid_turns_is_of_all_turns():
    counts = [(4.0, 0.0), (1.0, 1.0), (0.0, 0.0)]
    infos = [{"turns": turns, "invalid_turns": invalid} for turns, invalid in counts]
    assert search_metrics(infos)["search/valid_actions"] == pytest.approx(0.8)
    assert "search/valid_actions" not in search_metrics(infos[2:])


def test_right_is_a_score_above_zero_and_the_likelihood_of_right_and_wrong_is_logged_apart():
    scores = [(0.1, -1.0), (1.0, -3.0), (0.0, -5.0), (-2.0, -7.0), (1.0, None), (None, -9.0)]
    metrics = search_metrics([{"score": score, "logprob": logprob} for score, logprob in scores])
    assert (metrics["search/logprob_right"], metrics["search/logprob_wrong"]) == (-2.0, -6.0)
    assert metrics["search/logprob"] == -5.0
    assert "search/logprob_wrong" not in search_metrics([{"score": 1.0, "logprob": -1.0}])
