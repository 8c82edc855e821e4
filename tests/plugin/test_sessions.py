"""Whole trajectories in every mini-batch, the same number of updates, and rows fit for veRL's advantages."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.plugin.sessions import (
    group_by_session,
    last_rows,
    mini_batches,
    move_rewards,
    padded_row_count,
    prompt_of,
    rank_shares,
    session_of,
    trained_rows,
)
from tests.agent.quick_draws import choices

#: Rows of each trajectory, in the order in which the trajectories arrive.
COUNTS = choices([1, 2, 3, 4], least=1, most=30)
#: Whether each row of a trajectory has a generated token.
GENERATES = [bits for count in (1, 2, 3, 4) for bits in product([False, True], repeat=count)]


def keys_of(counts: list[int], group: int = 4) -> list[str]:
    """veRL's keys of trajectories with so many rows each."""
    return [f"uid-{i // group}_{i % group}_{row}" for i, count in enumerate(counts) for row in range(count)]


def test_a_key_names_prompt_trajectory_and_row():
    assert (prompt_of("3f-a_12_1"), session_of("3f-a_12_1")) == ("3f-a", "3f-a_12")


@pytest.mark.slow
@given(COUNTS, st.randoms(use_true_random=True))
def test_rows_are_put_in_order_whatever_order_they_come_in(counts, rng):
    keys = keys_of(counts)
    shuffled = rng.sample(keys, len(keys))
    rows = group_by_session(shuffled)
    assert sorted(rows) == sorted({session_of(key) for key in keys})
    assert list(rows) == list(dict.fromkeys(map(session_of, shuffled)))
    assert all(session == [f"{name}_{i}" for i in range(len(session))] for name, session in rows.items())
    assert last_rows(shuffled) == [session[-1] for session in rows.values()]


def test_the_eleventh_row_comes_after_the_tenth():
    assert last_rows([f"uid_0_{i}" for i in range(11)]) == ["uid_0_10"]


@given(COUNTS, st.integers(1, 8))
def test_mini_batches_hold_the_trajectories_that_they_would_hold_with_one_row_each(counts, sessions):
    split, single = (mini_batches(keys_of(n), sessions) for n in (counts, [1] * len(counts)))
    assert [key for batch in split for key in batch] == keys_of(counts)
    members = [[list(group_by_session(batch)) for batch in batches] for batches in (split, single)]
    assert members[0] == members[1]
    assert len(split) == math.ceil(len(counts) / sessions)
    assert all(len(batch) == sessions for batch in members[0][:-1])


@given(COUNTS, st.integers(1, 8), st.integers(1, 12))
def test_all_mini_batches_are_padded_to_the_longest_and_no_further_than_the_ranks_ask(
    counts, sessions, multiple
):
    batches = mini_batches(keys_of(counts), sessions)
    size = padded_row_count(batches, multiple)
    assert size % multiple == 0 and 0 <= size - max(map(len, batches)) < multiple


@given(COUNTS, st.integers(1, 8), st.integers(1, 4), st.randoms(use_true_random=True))
def test_every_rank_cuts_its_part_of_the_same_mini_batches_from_its_share(counts, sessions, ranks, rng):
    batches = mini_batches(keys_of(counts), sessions)
    size = padded_row_count(batches, ranks)
    padding = [f"pad_{i}_0" for i in range(size * len(batches) - sum(counts))]
    keys = [*keys_of(counts), *padding]
    lengths = {key: 1 if key.startswith("pad") else rng.randint(1, 99) for key in keys}
    dealt = rank_shares(batches, padding, ranks, lengths)
    assert sorted(key for share in dealt for key in share) == sorted(keys)
    part = size // ranks
    assert all(len(share) == part * len(batches) for share in dealt)
    for i, batch in enumerate(batches):
        together = [key for share in dealt for key in share[i * part : (i + 1) * part]]
        assert sorted(key for key in together if key not in padding) == sorted(batch)


def test_the_ranks_get_about_the_same_number_of_tokens():
    lengths = {f"uid_{i}_0": length for i, length in enumerate([9, 8, 2, 1])}
    assert rank_shares([list(lengths)], [], 2, lengths) == [["uid_0_0", "uid_3_0"], ["uid_1_0", "uid_2_0"]]


@pytest.mark.parametrize(
    ("batches", "padding", "ranks", "message"),
    [
        ([2, 2], 1, 1, r"1 padding rows do not fill mini-batches of \[2, 2\] rows for 1 ran"),
        ([3], 0, 2, "for 2 ranks"),
        ([3, 1], 0, 1, r"\[3, 1\]"),
    ],
)
def test_rows_that_cannot_be_dealt_out_are_an_error_with_the_numbers(batches, padding, ranks, message):
    rows = [[f"{batch}_0_{i}" for i in range(size)] for batch, size in enumerate(batches)]
    with pytest.raises(ValueError, match=message):
        rank_shares(rows, [f"pad_{i}_0" for i in range(padding)], ranks, {})


@given(choices(GENERATES, least=1, most=8))
def test_a_trajectory_ends_with_a_generated_token_if_it_has_any_and_keeps_a_row_if_not(generates):
    keys = keys_of([len(rows) for rows in generates])
    generated = dict(zip(keys, [bit for rows in generates for bit in rows], strict=True))
    kept = trained_rows(keys, generated)
    assert kept == [key for key in keys if key in set(kept)]
    assert list(group_by_session(kept)) == list(group_by_session(keys)), "every trajectory keeps its vote"
    for rows in group_by_session(keys).values():
        left = [key for key in rows if key in set(kept)]
        assert left == ([key for key in rows if generated[key]] or rows[-1:])


@given(choices(list(product([0.0, 0.5, -1.0], [0, 1])), least=1, most=12))
def test_no_reward_stands_behind_the_last_generated_token_and_none_is_lost(tokens):
    rewards, mask = [reward for reward, _ in tokens], [bit for _, bit in tokens]
    moved = move_rewards(rewards, mask)
    assert sum(moved) == sum(rewards)
    if 1 not in mask:
        assert moved == rewards
    else:
        last = len(mask) - 1 - mask[::-1].index(1)
        assert not any(moved[last + 1 :]) and moved[:last] == rewards[:last]
