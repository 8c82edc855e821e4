"""The sampler over a store in memory (veRL's, TransferQueue, lives in Ray; the trainings use that)."""

from __future__ import annotations

import pytest
from transfer_queue import KVBatchMeta

from rag_r1.plugin import sampler
from rag_r1.plugin.sampler import _SearchSampling

FINE = {"masked": 0.0, "em": 1.0, "failed_retriever": 0.0}
MASKED = {"masked": 1.0, "em": None, "failed_retriever": 1.0}


class Store:
    """What the sampler asks of TransferQueue: rows by key."""

    def __init__(self):
        self.rows = {}

    def kv_batch_get(self, keys, partition_id, select_fields):
        assert select_fields == ["extra_fields"]
        return {"extra_fields": [{"reward_extra_info": self.rows[key]} for key in keys]}

    def kv_clear(self, keys, partition_id):
        for key in keys:
            del self.rows[key]


class Buffer:
    """In the place of veRL's replay buffer: hands out one prepared batch after another."""

    def __init__(self, sampler_kwargs, refill_fn, **settings):
        self.refill_fn, self.settings = refill_fn, settings
        self.batches = []

    def sample(self, global_steps, partition_id, batch_size):
        batch = self.batches.pop(0)
        self.store.rows.update(batch)
        return KVBatchMeta(list(batch), [{"n": i} for i in range(len(batch))], partition_id), {"veRL": 1}


class Sampler(_SearchSampling, Buffer):
    pass


@pytest.fixture
def make(monkeypatch):
    def make(*batches, **options):
        store, refilled = Store(), []
        monkeypatch.setattr(sampler, "tq", store)
        options = {"refill_wait_s": 0.0, **options}
        made = Sampler(sampler_kwargs=options, refill_fn=refilled.append)
        made.store, made.batches, made.refilled = store, list(batches), refilled
        return made

    return make


def sample(made, partition_id="train", batch_size=1):
    return made.sample(global_steps=1, partition_id=partition_id, batch_size=batch_size)


def group(uid, *infos):
    return {f"{uid}_{i}_0": info for i, info in enumerate(infos)}


def test_a_batch_without_failures_is_handed_on_as_it_is_with_its_metrics(make):
    made = make(group("q", FINE, FINE), group_size=2)
    batch, metrics = sample(made)
    assert batch.keys == ["q_0_0", "q_1_0"] == list(made.store.rows)
    assert metrics["veRL"] == metrics["search/em"] == 1
    assert metrics["search/left_out"] == metrics["search/lost"] == metrics["search/masked"] == 0


def test_masked_trajectories_leave_the_batch_and_the_store_and_are_counted(make):
    made = make(group("q", FINE, MASKED, FINE) | group("r", MASKED, FINE, MASKED), group_size=3)
    batch, metrics = sample(made, batch_size=2)
    assert batch.keys == ["q_0_0", "q_2_0"] == list(made.store.rows)
    assert [tag["n"] for tag in batch.tags] == [0, 2]
    assert metrics["search/masked"] == pytest.approx(3 / 6) and metrics["search/left_out"] == 4
    assert metrics["search/em"] == 1.0, "what is not known is left out of a mean"


def test_trajectories_that_never_arrived_are_counted(make):
    made = make(group("q", FINE, FINE), group_size=8)
    assert sample(made)[1]["search/lost"] == 6


def test_a_batch_of_which_nothing_is_left_is_generated_anew(make):
    made = make(group("q", MASKED), group("r", MASKED), group("s", FINE))
    batch, metrics = sample(made)
    assert batch.keys == ["s_0_0"] == list(made.store.rows)
    assert made.refilled == [1, 1] and metrics["search/refilled_batches"] == 2


def test_a_failure_that_stays_ends_the_run_and_says_which(make):
    made = make(*(group(str(i), MASKED) for i in range(3)), refills=2)
    with pytest.raises(RuntimeError, match="'failed_retriever': 3.*resumes from its last checkpoint"):
        sample(made)
    assert made.refilled == [1, 1] and not made.store.rows


def test_validation_is_not_touched(make):
    made = make(group("q", MASKED, FINE))
    batch, metrics = sample(made, partition_id="val")
    assert batch.keys == ["q_0_0", "q_1_0"] and metrics == {"veRL": 1}


def test_verls_settings_that_do_not_reach_a_custom_sampler_are_taken_from_its_keys(make):
    made = make(poll_interval=0.1, sync_refill_failed_groups=True)
    assert made.settings == {"poll_interval": 0.1, "sync_refill_failed_groups": True}
