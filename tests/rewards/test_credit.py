"""The law of sums: what the turns have earned is what the trajectory has earned, from a term to the score."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import Trajectory, Turn
from rag_r1.rewards import RewardSum
from rag_r1.rewards.credit import Credit, as_credit
from rag_r1.rewards.term_call import Term

NUMBERS = st.floats(-1e6, 1e6)
WEIGHTS = st.floats(-1e3, 1e3)
UNKNOWN = st.sampled_from([None, math.nan, math.inf, -math.inf])


def played(n_turns: int) -> Trajectory:
    return Trajectory("t", "?", "rag_r1_mq", turns=[Turn("", "search") for _ in range(n_turns)])


@st.composite
def judged(draw, single=False):
    """A trajectory, the sum of some terms, and what each of them gives to the trajectory."""
    n_turns = draw(st.integers(0, 6))
    turns = st.lists(NUMBERS, min_size=n_turns, max_size=n_turns)
    returned = draw(st.lists((NUMBERS | st.none()) if single else (NUMBERS | turns | st.none()), max_size=5))
    terms = [
        Term(f"term_{i}", draw(WEIGHTS), lambda trajectory, golds, value=value: value)
        for i, value in enumerate(returned)
    ]
    return played(n_turns), RewardSum(tuple(terms)), returned


@given(NUMBERS, st.integers(1, 8))
def test_one_number_is_earned_by_the_last_turn(value, n_turns):
    credit = as_credit(value, n_turns)
    assert credit.value == value and credit.turns == (0.0,) * (n_turns - 1) + (value,)


@given(st.lists(NUMBERS))
def test_the_value_of_one_number_a_turn_is_their_sum(turns):
    credit = as_credit(turns, len(turns))
    assert credit.value == math.fsum(turns) and list(credit.turns) == turns


@given(st.lists(NUMBERS), UNKNOWN, st.integers(0, 9))
def test_one_turn_that_could_not_be_judged_leaves_the_whole_without_a_value(turns, unknown, at):
    turns.insert(at, unknown)
    assert as_credit(turns, len(turns)) is None


@given(UNKNOWN, st.integers(0, 3))
def test_an_unknown_number_is_no_credit(unknown, n_turns):
    assert as_credit(unknown, n_turns) is None


@given(st.lists(NUMBERS, min_size=1), NUMBERS.filter(bool))
def test_no_credit_breaks_the_law(turns, more):
    value = math.fsum(turns) + more
    if value != math.fsum(turns):
        with pytest.raises(ValueError, match="do not sum"):
            Credit(value, tuple(turns))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_credit_is_infinite_or_unknown(value):
    for turns in ((), (0.0, value)):
        with pytest.raises(ValueError, match="not a finite number"):
            Credit(value, turns)


@pytest.mark.parametrize(
    "returned", [[0.5, 1.0], (0.5, 1.0), np.array([0.5, 1.0], dtype=np.float32), [0.5, True]]
)
def test_turns_may_come_as_a_list_a_tuple_or_an_array(returned):
    assert as_credit(returned, 2) == Credit(1.5, (0.5, 1.0))


@pytest.mark.parametrize("returned", [2, np.float32(2), np.int64(2), np.array(2.0)])
def test_one_number_may_be_any_number(returned):
    credit = as_credit(returned, 1)
    assert credit == Credit(2.0, (2.0,)) and type(credit.value) is type(credit.turns[0]) is float


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        ([1.0], ValueError),
        ([], ValueError),
        ([1.0] * 3, ValueError),
        ("12", TypeError),
        (b"12", TypeError),
        ({0: 1.0, 1: 2.0}, TypeError),
        ([[1.0], [2.0]], TypeError),
        (["1", "2"], TypeError),
        (object(), TypeError),
    ],
)
def test_what_is_neither_one_number_nor_one_a_turn_is_refused(returned, error):
    with pytest.raises(error):
        as_credit(returned, 2)


@given(judged())
def test_the_turns_of_a_weighted_sum_sum_to_its_score(case):
    trajectory, reward, returned = case
    result = reward.result_of(trajectory, [term(trajectory, []) for term in reward.terms])
    assert len(result.turn_scores) == len(trajectory.turns)
    if trajectory.turns:
        assert math.fsum(result.turn_scores) == result.rewards["score"]
    expected = [
        term.weight * (math.fsum(value) if isinstance(value, list) else value)
        for term, value in zip(reward.terms, returned, strict=True)
        if value is not None
    ]
    assert result.rewards["score"] == pytest.approx(math.fsum(expected), rel=1e-9, abs=1e-3)
    assert result.rewards["missing_terms"] == returned.count(None) == len(result.missing)


@given(judged(single=True))
def test_of_single_numbers_the_score_is_the_weighted_sum_and_the_last_turn_has_it_all(case):
    trajectory, reward, returned = case
    pairs = [(term.weight, value) for term, value in zip(reward.terms, returned, strict=True)]
    score = 0.0
    for weight, value in pairs:  # not `sum`, which adds otherwise since Python 3.12
        score += weight * value if value is not None else 0.0
    result = reward.result_of(trajectory, [term(trajectory, []) for term in reward.terms])
    assert result.rewards["score"] == score == reward(trajectory, [])["score"]
    n_turns = len(trajectory.turns)
    assert result.turn_scores == ([0.0] * (n_turns - 1) + [score] if n_turns else [])
