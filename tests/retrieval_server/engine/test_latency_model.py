"""How long a server expects its work to take, on average and with the scatter of the latest batches."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.engine.latency_model import LatencyModel


def test_the_pace_of_overlapping_batches_is_the_time_between_their_ends():
    pace = LatencyModel(max_batch=10)
    assert pace.expected(100) == 0.0
    pace.batch_done(10, started=0.0, finished=2.0)
    assert pace.expected(10) == pytest.approx(2.0)
    pace.batch_done(10, started=1.0, finished=3.0)  # one second more, though it was under way for two
    assert pace.expected(10) == pytest.approx(0.8 * 2.0 + 0.2 * 1.0)
    pace.batch_done(10, started=103.0, finished=104.0)  # the idle time before it is nobody's
    assert pace.expected(10) == pytest.approx(0.8 * 1.8 + 0.2 * 1.0)


@given(
    fixed=st.floats(0.01, 1),
    each=st.floats(0.001, 0.1),
    sizes=st.binary(min_size=40, max_size=60),  # a byte each: 60 integers are drawn one by one
)
def test_what_a_batch_costs_and_what_a_query_costs_are_told_apart(fixed, each, sizes):
    pace, now = LatencyModel(max_batch=64), 0.0
    for size in [1, 64] * 10 + [byte % 64 + 1 for byte in sizes] + [1, 64] * 10:
        pace.batch_done(size, now, now := now + fixed + each * size)
    assert pace.expected(0) == 0.0
    for queries in (1, 64, 65, 640):
        batches = -(-queries // 64)
        close = 0.1 * batches * (fixed + 64 * each)
        assert pace.expected(queries) == pytest.approx(batches * fixed + queries * each, abs=close)


@given(batches=st.lists(st.tuples(st.integers(1, 64), st.floats(0.001, 9)), min_size=1, max_size=30))
def test_more_queries_never_take_less_time_and_none_take_none(batches):
    pace, now = LatencyModel(max_batch=64), 0.0
    for size, seconds in batches:
        pace.batch_done(size, now, now := now + seconds)
    for seconds in (pace.expected, pace.upper_bound):
        expected_seconds = [seconds(queries) for queries in range(200)]
        assert expected_seconds[0] == 0.0 and expected_seconds == sorted(expected_seconds)


@given(seconds=st.floats(0.01, 10), number=st.integers(1, 40), queries=st.integers(0, 200))
def test_batches_of_one_length_leave_no_doubt(seconds, number, queries):
    pace = LatencyModel(max_batch=64)
    for at in range(number):
        pace.batch_done(32, at * seconds, (at + 1) * seconds)
    assert pace.upper_bound(queries) == pytest.approx(pace.expected(queries))


@given(pattern=st.lists(st.floats(0.01, 4), min_size=1, max_size=8))
def test_answers_that_come_in_groups_are_expected_at_their_average(pattern):
    """As from a web search engine that answers several calls at once."""
    pace, now, expected_seconds = LatencyModel(max_batch=1), 0.0, []
    for number in range(50 * len(pattern)):
        pace.batch_done(1, 0.0, now := now + pattern[number % len(pattern)])
        expected_seconds.append(pace.expected(1))
    last = expected_seconds[-len(pattern) :]
    assert sum(last) / len(last) == pytest.approx(sum(pattern) / len(pattern))


def test_a_machine_that_is_fast_again_is_soon_known_to_be():
    pace, now = LatencyModel(max_batch=64), 0.0
    for number in range(50):
        pace.batch_done(25, now, now := now + (0.5 if number % 2 else 0.3))
    slow = pace.upper_bound(25)
    for _ in range(20):
        pace.batch_done(25, now, now := now + 0.1)
    assert pace.upper_bound(25) < 0.3 * slow


@given(seed=st.integers(0, 2**32), spread=st.floats(0.05, 0.25))
def test_about_one_batch_in_twenty_takes_longer_than_at_most(seed, spread):
    chance, pace, now, longer = random.Random(seed), LatencyModel(max_batch=64), 0.0, 0
    for number in range(1_100):
        took = max(0.01, chance.gauss(1.0, spread))
        if number >= 100:
            longer += took > pace.upper_bound(32)
        pace.batch_done(32, now, now := now + took)
    assert 0.02 < longer / 1_000 < 0.12


@given(spread=st.floats(0.01, 0.5), batches=st.integers(1, 16))
def test_the_scatter_of_several_batches_grows_with_the_root_of_their_number(spread, batches):
    pace, now = LatencyModel(max_batch=10), 0.0
    for number in range(100):
        pace.batch_done(10, now, now := now + 1 + (spread if number % 2 else -spread))
    half, single, many = (pace.upper_bound(n) - pace.expected(n) for n in (5, 10, 10 * batches))
    assert many == pytest.approx(single * batches**0.5)
    assert half == pytest.approx(single * pace.expected(5) / pace.expected(10))
    assert single == pytest.approx(2 * spread, rel=0.25)
