"""DAPO's dynamic sampling in veRL's own replay buffers: what is dropped, refilled, bounded and told."""

from __future__ import annotations

from itertools import chain, cycle, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from tests.plugin.store_in_memory import make_buffer, rewards_of, sample

MIXED, RIGHT, WRONG = [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]
BROKEN, HALF = [None, None], [1.0, None]


@pytest.fixture(params=["sync", "async"])
def make(monkeypatch, request):
    """A filtering sampler for either kind of trainer."""

    def make(groups, prompts, *args, group_size=2, **options):
        options = {**filtering(prompts, group_size, *args), **options}
        return make_buffer(monkeypatch, groups, asynchronous=request.param == "async", **options)

    return make


def filtering(prompts, group_size, metric="reward", limit=10):
    """The options of a sampler that replaces groups without a difference."""
    filters = {"enable": True, "metric": metric, "max_num_gen_batches": limit}
    return {"train_batch_size": prompts, "group_size": group_size, "filter_groups": filters}


@pytest.mark.parametrize("metric", ["reward", "em"])
def test_groups_with_one_reward_are_replaced_until_the_batch_is_full(make, metric):
    buffer = make(chain([MIXED, RIGHT, WRONG, MIXED], repeat(MIXED)), 4, metric)
    batch, metrics = sample(buffer, 4)
    assert list(rewards_of(buffer, batch).values()) == [MIXED] * 4
    assert metrics["search/filtered_groups"] == metrics["training/filter_groups/evicted_samples"] == 2
    assert metrics["search/refilled_groups"] == sum(buffer.rollout.requested) >= 2
    assert metrics["search/short_groups"] == metrics["search/unusable_groups"] == 0
    assert "prompt1_0_0" not in buffer.store.rows["train"], "a dropped group leaves the store"


def test_which_reward_the_dropped_groups_had_goes_to_verls_table(make):
    buffer = make(chain([RIGHT, RIGHT, WRONG], repeat(MIXED)), 3)
    assert sample(buffer, 3)[1]["_dapo_filtered_reward_counts"] == {1.0: 2, 0.0: 1}


def test_equal_values_are_equal_whatever_their_deviation_in_floating_point(make):
    buffer = make(chain([[0.1, 0.1, 0.1]], repeat(MIXED)), 1, "em", group_size=3)
    assert list(rewards_of(buffer, sample(buffer, 1)[0]).values()) == [MIXED]


def test_masked_trajectories_do_not_count_as_wrong_ones(make):
    buffer = make(chain([[1.0, 1.0, None]], repeat([1.0, 0.0, None])), 2, group_size=3)
    batch, metrics = sample(buffer, 2)
    # Of which prompts they are, veRL leaves open where more have ended.
    kept = list(rewards_of(buffer, batch).values())
    assert kept == [[1.0, 0.0]] * 2, "compared, and left out of the batch itself"
    assert "prompt0" not in rewards_of(buffer, batch) and metrics["search/filtered_groups"] == 1


@pytest.mark.parametrize("metric", ["reward", "em"])
def test_a_group_with_fewer_than_two_usable_trajectories_is_replaced_as_well(make, metric):
    buffer = make(chain([BROKEN, MIXED, HALF, MIXED], repeat(MIXED)), 4, metric)
    batch, metrics = sample(buffer, 4)
    assert list(rewards_of(buffer, batch).values()) == [MIXED] * 4
    assert metrics["search/unusable_groups"] == 2 and metrics["search/filtered_groups"] == 0


def test_at_the_limit_the_step_trains_on_the_groups_that_there_are(make):
    buffer = make(chain([MIXED, RIGHT, RIGHT, RIGHT], repeat(RIGHT)), 4, "reward", 3)
    batch, metrics = sample(buffer, 4)
    assert list(rewards_of(buffer, batch)) == ["prompt0"]
    assert buffer.rollout.started == 3 * 4 and metrics["search/refilled_groups"] == 8
    assert metrics["search/short_groups"] == 3 and metrics["search/lost"] == 0


def test_a_step_in_which_no_group_differs_ends_the_run_and_says_what_to_do(make):
    buffer = make(repeat(RIGHT), 2, "reward", 2)
    with pytest.raises(RuntimeError, match="none of 4 groups had different rewards.*max_num_gen_batches"):
        sample(buffer, 2)
    assert buffer.rollout.started == 4


def test_a_search_engine_that_is_away_costs_one_batch_of_prompts_at_a_time(make):
    buffer = make(chain(repeat(BROKEN, 4), repeat(MIXED)), 2, refills=3)
    batch, metrics = sample(buffer, 2)
    assert list(rewards_of(buffer, batch).values()) == [MIXED] * 2
    assert metrics["search/refilled_batches"] == 2, "two batches lost, and waited for each time"


def test_the_means_are_over_all_that_was_generated_and_the_limit_is_of_one_step(make):
    buffer = make(chain([MIXED, RIGHT], cycle([MIXED])), 2, "reward", 2)
    first = sample(buffer, 2)[1]
    assert first["search/samples"] == 2 * buffer.rollout.started
    assert first["search/em"] > 0.5, "the dropped group was right"
    second = sample(buffer, 2)[1]
    assert second["search/em"] == 0.5 and second["search/filtered_groups"] == 0


def test_several_rows_of_a_trajectory_count_once(monkeypatch):
    buffer = make_buffer(monkeypatch, [[1.0]], rows_of_each=2, **filtering(1, 1, limit=2))
    assert len(sample(buffer, 1)[0].keys) == 2, "one trajectory of two rows is no group of equals"


def test_a_metric_that_the_reward_manager_does_not_give_is_named_with_those_that_there_are(make):
    buffer = make([MIXED], 1, "f2")
    with pytest.raises(RuntimeError, match="metric=f2 .*em, failed_retriever, masked, score"):
        sample(buffer, 1)


def test_a_group_is_fetched_once_however_often_the_buffer_looks(make):
    buffer = make([MIXED, MIXED], 2)
    buffer.rollout.start(1)
    wait = buffer._wait_for_next_poll

    def and_one_more_ends(*args):
        if buffer.rollout.started < 2:
            buffer.rollout.start(1)
        return wait(*args)

    buffer._wait_for_next_poll = and_one_more_ends
    buffer.sample(global_steps=1, partition_id="train", batch_size=2)
    looked = {key: n for key, n in buffer.store.fetched.items() if key.startswith("prompt0")}
    assert set(looked.values()) == {2}, "once to compare the group, once with the batch"


def test_validation_groups_are_never_filtered(make):
    buffer = make([RIGHT, WRONG], 2)
    batch, _ = sample(buffer, 2, "val")
    assert list(rewards_of(buffer, batch).values()) == [RIGHT, WRONG]


def test_groups_that_failed_without_a_trajectory_are_refilled_if_that_is_asked_for(monkeypatch):
    options = {"group_size": 2, "train_batch_size": 2, "sync_refill_failed_groups": True}
    buffer = make_buffer(monkeypatch, [[], RIGHT, MIXED], **options)
    batch, metrics = sample(buffer, 2)
    assert list(rewards_of(buffer, batch).values()) == [RIGHT, MIXED], "and nothing is filtered"
    assert buffer.rollout.requested == [1] and metrics["search/refilled_groups"] == 1


@pytest.mark.slow
def test_the_recipes_tell_the_sampler_what_verl_does_not(model_config):
    """veRL's own trainer makes the replay buffer from a composed recipe."""
    config = model_config("algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=em")
    buffer = built_by_verl(config)
    assert (buffer.filter_groups_metric, buffer.max_gen_batches, buffer.train_batch_size) == ("em", 10, 512)
    assert buffer.group_size == 5 and not buffer.sync_refill_failed_groups
    config = model_config("trainer.v1.sampler.sync_refill_failed_groups=true")
    buffer = built_by_verl(config)
    assert buffer.sync_refill_failed_groups and buffer.filter_groups_metric is None
    assert buffer.gen_batch_size == 1


@pytest.fixture(scope="module")
def model_config():
    from tests.recipes.composed_recipes import composed

    return lambda *overrides: composed("recipes/rag_r1/grpo", *overrides)


def built_by_verl(config):
    trainer = object.__new__(PPOTrainerSync)
    trainer.config, trainer.trainer_mode = config, "sync"
    return trainer._build_replay_buffer()


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0, None]), min_size=3, max_size=3), max_size=12),
    st.integers(1, 3),
    st.integers(1, 4),
    st.booleans(),
)
def test_whatever_arrives_no_kept_group_is_without_difference_and_the_limit_holds(
    groups, prompts, most, asynchronous
):
    with pytest.MonkeyPatch.context() as patch:
        options = {**filtering(prompts, 3, limit=most), "asynchronous": asynchronous, "refills": 0}
        buffer = make_buffer(patch, chain(groups, repeat([0.0, 0.0, 0.0])), **options)
        try:
            batch, metrics = sample(buffer, prompts)
        except RuntimeError:
            kept = {}
        else:
            kept = rewards_of(buffer, batch)
            assert len(kept) == prompts - metrics["search/short_groups"] > 0
        assert all(len(set(rewards)) > 1 and None not in rewards for rewards in kept.values())
        assert buffer.rollout.started <= most * prompts
