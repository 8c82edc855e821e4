"""The decisions of dynamic batching, driven by an invented clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.engine.batching import BatchFormer


class Item:
    """A query; compared by identity, as the engine's jobs are."""


def items(number):
    return [Item() for _ in range(number)]


def ask(former, number, now, request=None):
    new = items(number)
    for item in new:
        former.add(item, now, request)
    return new


def test_a_client_that_is_alone_never_waits():
    former = BatchFormer(8, 0.004)
    for now in range(5):
        ask(former, 1, now)
        assert former.seconds_until_due(now) == 0.0
        assert len(former.take()) == 1
        former.note_unanswered(1)


def test_after_a_crowd_the_first_waits_for_the_others_as_long_as_they_come():
    former = BatchFormer(8, 0.004)
    former.note_unanswered(5)
    ask(former, 1, 11.0)
    assert former.seconds_until_due(11.0) == pytest.approx(0.004)
    assert former.seconds_until_due(11.003) == pytest.approx(0.001)
    ask(former, 3, 11.003)
    assert former.seconds_until_due(11.003) == pytest.approx(0.004)  # they still come
    ask(former, 1, 11.0065)
    assert former.seconds_until_due(11.0065) == 0.0  # as many as last time: all are here
    assert len(former.take()) == 5
    ask(former, 1, 12.0)
    assert former.seconds_until_due(12.004) == 0.0


def test_who_comes_one_by_one_puts_a_batch_off_ten_waits_at_most():
    former = BatchFormer(1000, 0.004)
    former.note_unanswered(1000)
    now = 5.0
    while True:
        ask(former, 1, now)
        if former.seconds_until_due(now) == 0.0:
            break
        now += 0.003
    assert now - 5.0 == pytest.approx(0.04, abs=0.003)


def test_who_waited_while_a_batch_was_worked_on_waits_a_moment_for_those_it_answered():
    former = BatchFormer(64, 0.004)
    ask(former, 3, 1.0)
    former.note_unanswered(8)
    assert former.seconds_until_due(2.0, free_since=2.0) == pytest.approx(0.004)
    ask(former, 4, 2.003)
    assert former.seconds_until_due(2.003, free_since=2.0) == pytest.approx(0.004)
    ask(former, 1, 2.005)
    assert former.seconds_until_due(2.005, free_since=2.0) == 0.0


def test_nobody_waits_for_those_who_are_being_worked_on():
    former = BatchFormer(64, 0.004)
    former.note_unanswered(8)
    ask(former, 3, 1.0)
    assert former.seconds_until_due(1.0, under_way=5) == 0.0
    assert former.seconds_until_due(1.0, under_way=4) == pytest.approx(0.004)


def test_a_crowd_that_has_gone_is_forgotten_after_a_few_batches():
    former = BatchFormer(8, 0.004)
    former.note_unanswered(8)
    for now in range(1, 5):
        ask(former, 1, now)
        former.take()
        former.note_unanswered(1)
    ask(former, 1, 9.0)
    assert former.seconds_until_due(9.0) == 0.0


def test_batches_are_full_and_in_order_of_arrival():
    former = BatchFormer(4, 0.004)
    added = ask(former, 10, 0.0)
    assert former.seconds_until_due(0.0) == 0.0
    assert [former.take(), former.take(), former.take()] == [added[:4], added[4:8], added[8:]]


def test_what_nobody_wants_any_more_is_not_computed():
    former = BatchFormer(4, 0.004)
    first, second, third = ask(former, 3, 0.0)
    assert former.remove(second) and not former.remove(second)
    former.add_suspects([second])
    assert former.remove(second)
    assert former.take() == [first, third]
    assert not former.remove(first)


def test_queries_of_a_failed_batch_go_first_and_alone():
    former = BatchFormer(4, 0.004)
    suspects = items(2)
    others = ask(former, 2, 0.0)
    former.add_suspects(suspects)
    assert former.seconds_until_due(0.0) == 0.0
    assert [former.take(), former.take(), former.take()] == [suspects[:1], suspects[1:], others]


def test_a_request_of_very_many_queries_holds_up_a_single_one_for_a_batch_only():
    former = BatchFormer(8, 0.004)
    many = ask(former, 1000, 0.0, request="many")
    former.take()
    (single,) = ask(former, 1, 1.0)
    batch = former.take()
    assert single in batch and len(batch) == 8 and set(batch) - {single} <= set(many)


def test_a_crowd_of_single_queries_leaves_half_of_each_batch_to_the_oldest_request():
    former = BatchFormer(8, 0.004)
    many = ask(former, 30, 0.0, request="many")
    for now in range(5):
        ask(former, 20, now)
        of_many = sum(item in many for item in former.take())
        assert 4 <= of_many <= 5  # half, and one when its turn comes


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12), max_batch=st.integers(1, 9))
def test_every_request_has_its_turn_within_as_many_turns_as_requests_wait(sizes, max_batch):
    former = BatchFormer(max_batch, 0.004)
    for number, size in enumerate(sizes):
        ask(former, size, float(number), request=f"before {number}")
    (last,) = ask(former, 1, 99.0)
    turns_in_a_batch = max_batch - max_batch // 2
    batches = []
    for _ in range(-(-(len(sizes) + 1) // turns_in_a_batch)):
        if last not in sum(batches, []):
            batches.append(former.take())
        ask(former, 5, 100.0, request=object())  # who comes later takes no turn from it
    assert last in sum(batches, [])


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "take", "remove", "suspect", "saw"]), st.integers(0, 9)),
        max_size=60,
    ),
    max_batch=st.integers(1, 5),
)
def test_every_query_comes_out_once_or_was_taken_back(steps, max_batch):
    former, now = BatchFormer(max_batch, 0.004), 0.0
    waiting, out, removed, everyone = [], [], [], []
    for step, number in steps:
        now += 0.001
        if step == "add":
            new = ask(former, number, now, request=object() if number % 2 else None)
            waiting += new
            everyone += new
        elif step == "suspect":
            new = items(number)
            former.add_suspects(new)
            waiting += new
            everyone += new
        elif step == "remove" and waiting:
            item = waiting.pop(number % len(waiting))
            assert former.remove(item)
            removed.append(item)
        elif step == "saw":
            former.note_unanswered(number)
        elif step == "take" and waiting:
            batch = former.take()
            assert 1 <= len(batch) <= max_batch
            waiting = [item for item in waiting if item not in batch]
            out += batch
        assert len(former) == len(waiting)
        due = former.seconds_until_due(now)
        assert (due is None) == (not waiting) and (due is None or 0.0 <= due <= 0.004 + 1e-9)
    while len(former):
        out += former.take()
    assert sorted(map(id, out + removed)) == sorted(map(id, everyone))
