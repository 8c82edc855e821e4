"""The sampler over veRL's own replay buffer, with a store in memory (store_in_memory.py)."""

from __future__ import annotations

import pytest
from store_in_memory import make_buffer, rewards_of, sample


@pytest.fixture
def make(monkeypatch):
    return lambda *groups, **options: make_buffer(monkeypatch, groups, **options)


def test_a_batch_without_failures_is_handed_on_as_it_is_with_its_metrics(make):
    made = make([1.0, 1.0], group_size=2)
    batch, metrics = sample(made, 1)
    assert batch.keys == ["prompt0_0_0", "prompt0_1_0"] == list(made.store.rows["train"])
    assert metrics["search/em"] == 1
    assert metrics["search/left_out"] == metrics["search/lost"] == metrics["search/masked"] == 0


def test_masked_trajectories_leave_the_batch_and_the_store_and_are_counted(make):
    made = make([1.0, None, 1.0], [None, 1.0, None], group_size=3)
    batch, metrics = sample(made, 2)
    assert batch.keys == ["prompt0_0_0", "prompt0_2_0"] == list(made.store.rows["train"])
    assert len(batch.tags) == 2
    assert metrics["search/masked"] == pytest.approx(3 / 6) and metrics["search/left_out"] == 4
    assert metrics["search/em"] == 1.0, "what is not known is left out of a mean"


def test_trajectories_that_never_arrived_are_counted(make):
    made = make([1.0, 1.0], group_size=8)
    assert sample(made, 1)[1]["search/lost"] == 6


def test_a_batch_of_which_nothing_is_left_is_generated_anew(make):
    made = make([None], [None], [1.0])
    batch, metrics = sample(made, 1)
    assert batch.keys == ["prompt2_0_0"] == list(made.store.rows["train"])
    assert made.rollout.asked == [1, 1] and metrics["search/refilled_batches"] == 2


def test_a_failure_that_stays_ends_the_run_and_says_which(make):
    made = make([None], [None], [None], refills=2)
    with pytest.raises(RuntimeError, match="'failed_retriever': 3.*resumes from its last checkpoint"):
        sample(made, 1)
    assert made.rollout.asked == [1, 1] and not made.store.rows["train"]


def test_a_validation_without_failures_is_not_touched(make):
    made = make([0.0, 1.0])
    batch, metrics = sample(made, 1, "val")
    assert batch.keys == ["prompt0_0_0", "prompt0_1_0"] and metrics == {}
    assert rewards_of(made, batch) == {"prompt0": [0.0, 1.0]}


def test_verls_settings_that_do_not_reach_a_custom_sampler_are_taken_from_its_keys(make):
    filters = {"enable": True, "metric": "em", "max_inflight_gen_batches": 3}
    made = make(
        poll_interval=0.1, sync_refill_failed_groups=True, filter_groups=filters, train_batch_size=4
    )  # fmt: skip
    assert made.poll_interval == 0.1 and made.sync_refill_failed_groups
    assert (made.filter_groups_metric, made.max_inflight_gen_batches) == ("em", 3)
    assert (made.train_batch_size, made.gen_batch_size) == (4, 1)


def test_without_them_verls_buffer_filters_nothing(make):
    made = make(filter_groups={"enable": False, "metric": "reward"}, train_batch_size=4)
    assert made.filter_groups_metric is None and not made.sync_refill_failed_groups
    assert rewards_of(made, sample_of(made, [1.0, 1.0])) == {"prompt0": [1.0, 1.0]}


def sample_of(made, *groups):
    made.rollout.groups = iter(groups)
    return sample(made, len(groups))[0]
