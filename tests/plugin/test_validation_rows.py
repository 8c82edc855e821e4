"""What a validation under failures tells: veRL's own means of what was judged, and the losses."""

from __future__ import annotations

import logging

import pytest
from verl.trainer.ppo.metric_utils import process_validation_metrics

from tests.plugin.store_in_memory import rewards_of, row, sample


def verls_means(buffer, batch) -> dict[str, float]:
    """As veRL's `_validate` reads a batch: rewards of the rows, and the reward manager's values."""
    rows = [buffer.store.rows["val"][key] for key in batch.keys]
    infos = {"reward": [float(row["rm_scores"].sum()) for row in rows]}
    for name in rows[0]["extra_fields"]["reward_extra_info"]:
        infos[name] = [row["extra_fields"]["reward_extra_info"].get(name) for row in rows]
    uids = [key.split("_")[0] for key in batch.keys]
    sources = [row["data_source"] for row in rows]
    metrics_by_source = process_validation_metrics(sources, uids, infos)
    return {name: metrics["mean@1"] for name, metrics in metrics_by_source["demo"].items()}


def test_the_means_are_over_what_was_judged_and_the_losses_are_told(make, caplog):
    buffer = make([1.0], [None], [0.0], [None], [1.0])
    with caplog.at_level(logging.ERROR):
        batch, _ = sample(buffer, 5, "val")
    means = verls_means(buffer, batch)
    assert means["reward"] == means["em"] == pytest.approx(2 / 3), "val-core's mean, not 2 of 5"
    assert means["masked"] == means["failed_retriever"] == pytest.approx(2 / 5)
    assert "2 of 5 trajectories were lost" in caplog.text and "demo: failed_retriever 40%" in caplog.text
    assert set(buffer.store.rows["val"]) == set(batch.keys), "what was lost leaves the store"


def test_losses_are_counted_for_each_data_source(make):
    buffer = make([1.0], [None], [1.0], [1.0])
    buffer.rollout.start(4, "val")
    for key in ("prompt2_0_0", "prompt3_0_0"):
        buffer.store.rows["val"][key]["data_source"] = "other"
    batch, _ = buffer.sample(global_steps=1, partition_id="val", batch_size=4)
    fields = {key: buffer.store.rows["val"][key]["extra_fields"] for key in batch.keys}
    shares = {key: field["reward_extra_info"]["masked"] for key, field in fields.items()}
    assert shares == {"prompt0_0_0": 0.5, "prompt2_0_0": 0.0, "prompt3_0_0": 0.0}


def test_a_data_source_of_which_nothing_was_judged_is_only_in_the_log(make, caplog):
    buffer = make([1.0], [None])
    buffer.rollout.start(2, "val")
    buffer.store.rows["val"]["prompt1_0_0"]["data_source"] = "other"
    with caplog.at_level(logging.ERROR):
        batch, _ = buffer.sample(global_steps=1, partition_id="val", batch_size=2)
    assert batch.keys == ["prompt0_0_0"] and "other: failed_retriever 100%, masked 100%" in caplog.text


def test_a_validation_of_which_nothing_is_left_says_that_it_is_worth_nothing(make, caplog):
    buffer = make([None], [None])
    batch, _ = sample(buffer, 2, "val")
    assert list(rewards_of(buffer, batch).values()) == [[None], [None]], "veRL's validation asks for rows"
    assert "worth nothing" in caplog.text


def test_trajectories_are_counted_and_not_their_rows(make, caplog):
    buffer = make([1.0], [None], [0.0], [None], rows_of_each=3)
    buffer.rollout.start(4, "val")
    buffer.store.put("val", "prompt1_0_3", {"seq_len": 2}, **row(None))
    batch, _ = buffer.sample(global_steps=1, partition_id="val", batch_size=4)
    rows = [f"prompt{i}_0_{part}" for i in (0, 2) for part in range(3)]
    assert batch.keys == rows == list(buffer.store.rows["val"]), "all rows of what was judged stay"
    means = verls_means(buffer, batch.select_keys(["prompt0_0_2", "prompt2_0_2"]))
    assert means["em"] == pytest.approx(1 / 2) and means["masked"] == pytest.approx(2 / 4)
    assert "2 of 4 trajectories were lost" in caplog.text


def test_without_losses_nothing_is_logged_or_written(make, caplog):
    buffer = make([1.0], [0.0])
    buffer.rollout.start(2, "val")
    before = {key: row["extra_fields"] for key, row in buffer.store.rows["val"].items()}
    batch, _ = buffer.sample(global_steps=1, partition_id="val", batch_size=2)
    assert all(buffer.store.rows["val"][key]["extra_fields"] is before[key] for key in batch.keys)
    assert len(before) == len(batch.keys) == 2 and not caplog.records
    assert verls_means(buffer, batch)["masked"] == 0
