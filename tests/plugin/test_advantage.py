"""What failures and ties do to GRPO's advantages, in veRL's own function."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from rag_r1.plugin.reward_manager import round_to_grid
from rag_r1.plugin.sampler import trainable_keys


def advantages(rewards, groups, masks=None):
    """One advantage for each trajectory of two tokens, the reward on the last."""
    rows = torch.zeros(len(rewards), 2)
    rows[:, 1] = torch.tensor(rewards, dtype=torch.float32)
    mask = torch.tensor([[m, m] for m in masks or [1] * len(rewards)])
    return compute_grpo_outcome_advantage(rows, mask, np.array(groups, dtype=object))[0][:, 0].tolist()


def test_without_the_grid_verl_makes_an_advantage_out_of_a_tie():
    ties = [advantages([i / 10] * n, ["q"] * n)[0] for i in range(-10, 21) for n in (3, 5, 6, 7)]
    assert max(map(abs, ties)) > 0.01


@given(st.floats(-4, 4), st.integers(2, 32))
def test_a_tied_group_has_no_advantage(reward, size):
    assert advantages([round_to_grid(reward)] * size, ["q"] * size) == [0.0] * size


@given(st.floats(-1e6, 1e6))
def test_the_grid_moves_a_reward_by_less_than_a_hundred_thousandth(reward):
    assert abs(round_to_grid(reward) - reward) <= 2**-17
    assert round_to_grid(round_to_grid(reward)) == round_to_grid(reward)


def test_a_response_mask_of_zero_alone_leaves_the_reward_in_the_groups_mean():
    rewards, masks = [1.0, 0.0, 0.0], [1, 1, 0]
    assert advantages(rewards, ["q"] * 3, masks)[0] != pytest.approx(advantages([1.0, 0.0], ["q"] * 2)[0])


def test_verl_takes_the_bare_reward_of_a_lonely_trajectory_for_its_advantage():
    assert advantages([1.0], ["q"]) == pytest.approx([1.0], abs=1e-5)


def keys(groups):
    """veRL's keys of trajectories with one row each: {"q": 3} gives q_0_0, q_1_0, q_2_0."""
    return [f"{uid}_{i}_0" for uid, n in groups.items() for i in range(n)]


def test_the_sampler_leaves_masked_trajectories_out_and_the_siblings_are_compared_among_themselves():
    rewards = {"q_0_0": 1.0, "q_1_0": 0.0, "q_2_0": 0.0, "q_3_0": 0.5}
    kept = trainable_keys(list(rewards), [False, False, True, False])
    assert kept == ["q_0_0", "q_1_0", "q_3_0"]
    rest = advantages([rewards[key] for key in kept], ["q"] * 3)
    assert rest == advantages([1.0, 0.0, 0.5], ["q"] * 3)


def test_the_last_of_a_group_leaves_with_the_others():
    assert trainable_keys(keys({"q": 3, "r": 3}), [True, True, False, False, False, True]) == [
        "r_0_0",
        "r_1_0",
    ]


def test_a_trajectory_that_was_alone_from_the_start_stays():
    assert trainable_keys(keys({"q": 1, "r": 1}), [False, True], group_size=1) == ["q_0_0"]
    assert trainable_keys(keys({"q": 1}), [False]) == ["q_0_0"]
    # Its seven siblings never arrived.
    assert trainable_keys(keys({"q": 1}), [False], group_size=8) == []


def test_all_rows_of_a_trajectory_leave_together():
    rows = ["q_0_0", "q_0_1", "q_1_0", "q_2_0", "q_2_1"]
    assert trainable_keys(rows, [False, True, False, False, False]) == ["q_1_0", "q_2_0", "q_2_1"]


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), max_size=6))
def test_what_is_kept_is_never_masked_never_alone_and_in_order(groups):
    masked = {f"u-{i}_{j}_0": flag for i, flags in enumerate(groups) for j, flag in enumerate(flags)}
    kept = trainable_keys(list(masked), list(masked.values()))
    assert [key for key in masked if key in set(kept)] == kept
    for i, flags in enumerate(groups):
        here = [key for key in kept if key.startswith(f"u-{i}_")]
        assert not any(masked[key] for key in here)
        assert len(here) in ({flags.count(False)} if flags.count(False) != 1 else {0, 1})
        if len(flags) > 1:
            assert len(here) != 1
