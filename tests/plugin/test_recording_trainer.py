"""The advantages that our trainers write: one line for each trajectory, to be joined with its record."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import verl  # noqa: F401  (loads the plugin)
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import get_trainer_cls

from rag_r1.plugin import sample_store
from rag_r1.plugin.recording_trainer import (
    RecordingMixin,
    SearchTrainerSync,
    advantage_lines,
    logprob_gaps,
)
from rag_r1.plugin.sample_store import KVBatchMeta
from rag_r1.training.metrics_files import StartMetrics
from tests.plugin.store_in_memory import Store


@pytest.fixture
def store(monkeypatch):
    store = Store()
    monkeypatch.setattr(sample_store, "tq", store)
    return store


def put(store: Store, key: str, score: float, advantages, mask, **tag) -> None:
    rewards = torch.zeros(len(mask))
    rewards[-1] = score
    tensors = {"advantages": torch.tensor(advantages), "response_mask": torch.tensor(mask)}
    store.put("train", key, tag, rm_scores=rewards, **tensors)


def lines(store: Store) -> dict[tuple[str, int], dict]:
    tags = store.tags["train"]
    batch = KVBatchMeta(partition_id="train", keys=[*tags], tags=[*tags.values()])
    return {(line["group"], line["sample"]): line for line in advantage_lines(batch, 4)}


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_a_recording_trainer_is_verls_own_trainer_of_its_mode(mode):
    ours, verls = get_trainer_cls(f"search_{mode}"), get_trainer_cls(mode)
    assert issubclass(ours, verls) and ours.verls_mode == mode


def test_a_line_has_the_advantage_of_the_generated_tokens_and_the_figures_of_the_group(store):
    put(store, "a_0_0", 1.0, [0.5, 9.0, 1.5], [1, 0, 1])
    put(store, "a_1_0", 0.0, [-0.5, -0.5], [1, 1])
    put(store, "b_0_0", 1.0, [0.0], [0])  # masked: nothing of it is trained on
    line = lines(store)["a", 0]
    assert (line["step"], line["score"], line["group_size"]) == (4, 1.0, 2)
    assert (line["advantage"], line["advantage_min"], line["advantage_max"]) == (1.0, 0.5, 1.5)
    assert (line["group_mean"], line["group_std"]) == (0.5, pytest.approx(0.5**0.5))
    assert lines(store)["a", 1]["advantage"] == -0.5
    assert lines(store)["b", 0]["advantage"] == 0.0


def test_the_rows_of_a_trajectory_are_one_line_and_padding_is_none(store):
    put(store, "a_0_0", 1.0, [1.0, 1.0], [1, 1])
    put(store, "a_0_1", 1.0, [4.0], [1])
    put(store, "padding_0_0", 0.0, [7.0], [0], is_padding=True)
    (line,) = lines(store).values()
    assert (line["score"], line["advantage"], line["group_size"]) == (1.0, 2.0, 1)


class _Batch(SearchTrainerSync):
    """The trainer without its parts: only the folder and the step."""

    def __init__(self, folder: str, step: int):
        from omegaconf import OmegaConf

        self.config, self.global_steps = OmegaConf.create({"rag_r1": {"trajectory_dir": folder}}), step


def test_a_disk_that_is_full_loses_the_lines_and_not_the_step(store, tmp_path, monkeypatch, caplog):
    put(store, "a_0_0", 1.0, [1.0], [1])
    batch = KVBatchMeta(partition_id="train", keys=["a_0_0"], tags=[{}])
    monkeypatch.setattr(
        "verl.trainer.ppo.v1.PPOTrainerSync._compute_advantage", lambda self, batch, metrics: batch
    )
    assert _Batch(str(tmp_path), 4)._compute_advantage(batch, {}) is batch
    (written,) = (tmp_path / "advantages").glob("step_000004-*.ndjson")
    (tmp_path / "file").write_text("")
    assert _Batch(str(tmp_path / "file"), 5)._compute_advantage(batch, {}) is batch
    assert "cannot write the advantages of step 5" in caplog.text and written.stat().st_size


class _Parent:
    """As much of veRL's trainer as the mixin needs."""

    parameter_sync_step, global_steps, config = 1, 4, OmegaConf.create({"rag_r1": {}})

    def _compute_advantage(self, batch, metrics):
        return batch

    def _compute_ref_log_prob(self, batch, metrics):
        batch.extra_info.update({"temperature": 1.0, "no_lora_adapter": True})
        return batch


class _Trainer(RecordingMixin, _Parent):
    def __init__(self, parameter_sync_step: int = 1):
        self.parameter_sync_step = parameter_sync_step


def test_a_critic_is_not_told_to_leave_out_the_actors_adapters():
    batch = KVBatchMeta(partition_id="train", keys=["a_0_0"], tags=[{}])
    assert _Trainer()._compute_ref_log_prob(batch, {}).extra_info == {"temperature": 1.0}


@pytest.mark.parametrize(
    ("logged", "updates", "written"),
    [("metrics-3.jsonl", 1, True), ("metrics-3.jsonl", 2, False), ("mine.jsonl", 1, False), (None, 1, False)],
)
def test_what_is_known_of_a_whole_batch_is_written_beside_the_file_that_rag_r1_has_named(
    store, tmp_path, monkeypatch, logged, updates, written
):
    put(store, "a_0_0", 1.0, [0.5, 9.0, 1.5], [1, 0, 1])
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / logged) if logged else "")
    batch = KVBatchMeta(partition_id="train", keys=["a_0_0"], tags=[{}])
    _Trainer(updates)._compute_advantage(batch, {"search/right": np.float64(0.5), "search/note": "x"})
    assert [path.name for path in tmp_path.iterdir()] == ["rollouts-3.jsonl"] * written
    line = (4, {"search/right": 0.5, "search/trained_tokens": 2.0}, False)
    assert [*StartMetrics(tmp_path / "metrics-3.jsonl").new_lines()] == [line] * written


def test_the_gap_between_engine_and_actor_is_of_generated_tokens_in_nats(store):
    for key, mask, engine, actor in (
        ("a_0_0", [1, 0, 1], [-1.0, -9.0, -2.0], [-1.25, -1.0, -2.0]),
        ("a_1_0", [1, 1], [-7.0, -3.0], [-6.0, -3.0]),
        ("padding_0_0", [1], [-5.0], [0.0]),
    ):
        put(store, key, 1.0, [0.0] * len(mask), mask, is_padding=key.startswith("padding"))
        row = store.rows["train"][key]
        row.update(rollout_log_probs=torch.tensor(engine), old_log_probs=torch.tensor(actor))
    tags = store.tags["train"]
    batch = KVBatchMeta(partition_id="train", keys=[*tags], tags=[*tags.values()])
    assert logprob_gaps(batch) == {"search/logprob_gap_mean": 0.3125, "search/logprob_gap_max": 1.0}


@pytest.mark.parametrize(
    ("calculated", "bypass", "both"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_it_is_known_where_the_actor_has_log_probs_of_its_own(calculated, bypass, both):
    trainer = _Trainer()
    trainer.config = OmegaConf.create(
        {
            "actor_rollout_ref": {"rollout": {"calculate_log_probs": calculated}},
            "algorithm": {"rollout_correction": {"bypass_mode": bypass}},
        }
    )
    assert trainer._has_both_log_probs() is both
