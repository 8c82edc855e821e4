"""Seats: order, limits, and when a refused chat should come back."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.serving.admission import MAX_RETRY_S, MIN_RETRY_S, AdmissionQueue, ServerFullError


async def test_chats_beyond_the_seats_wait_in_order_and_beyond_the_queue_are_refused():
    seats = AdmissionQueue(max_running=1, max_waiting=2)
    first, second, third = seats.enter(), seats.enter(), seats.enter()
    assert [ticket.is_admitted for ticket in (first, second, third)] == [True, False, False]
    assert [ticket.ahead for ticket in (first, second, third)] == [0, 0, 1]
    with pytest.raises(ServerFullError) as refused:
        seats.enter()
    assert MIN_RETRY_S <= refused.value.retry_after_s <= MAX_RETRY_S
    first.leave(finished=True)
    await asyncio.wait_for(second.wait_for_slot(), 1)
    assert not third.is_admitted


async def test_a_chat_that_leaves_the_queue_makes_room_there():
    seats = AdmissionQueue(max_running=1, max_waiting=1)
    running, waiting = seats.enter(), seats.enter()
    waiting.leave()
    assert seats.waiting == 0
    later = seats.enter()
    running.leave()
    assert later.is_admitted


async def test_a_cancelled_wait_loses_only_itself():
    seats = AdmissionQueue(max_running=1, max_waiting=2)
    running, waiting, later = seats.enter(), seats.enter(), seats.enter()
    task = asyncio.create_task(waiting.wait_for_slot())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    waiting.leave()
    running.leave()
    await asyncio.wait_for(later.wait_for_slot(), 1)
    assert seats.running == 1 and seats.waiting == 0


async def test_no_queue_is_allowed():
    seats = AdmissionQueue(max_running=1, max_waiting=0)
    seats.enter()
    with pytest.raises(ServerFullError):
        seats.enter()


async def test_longer_chats_are_told_to_come_back_later(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("rag_r1.serving.admission.time.monotonic", lambda: now[0])

    def retry_after(chat_s: float) -> int:
        seats = AdmissionQueue(max_running=1, max_waiting=0)
        for _ in range(40):
            ticket = seats.enter()
            now[0] += chat_s
            ticket.leave(finished=True)
        seats.enter()
        with pytest.raises(ServerFullError) as refused:
            seats.enter()
        return refused.value.retry_after_s

    assert retry_after(0.01) == MIN_RETRY_S
    assert retry_after(20) == 20
    assert retry_after(10_000) == MAX_RETRY_S


@given(st.lists(st.one_of(st.none(), st.integers(0, 30)), max_size=60), st.integers(1, 4), st.integers(0, 4))
def test_whoever_comes_and_goes_the_limits_hold_and_no_free_seat_is_waited_for(moves, running, waiting):
    async def play() -> None:
        seats, tickets = AdmissionQueue(running, waiting), []
        for move in moves:
            if move is None:
                try:
                    tickets.append(seats.enter())
                except ServerFullError:
                    assert seats.running == running and seats.waiting == waiting
            elif move < len(tickets):
                tickets[move].leave()
            assert seats.running <= running and seats.waiting <= waiting
            assert seats.waiting == 0 or seats.running == running
        for ticket in tickets:
            ticket.leave()
        assert seats.running == seats.waiting == 0

    asyncio.run(play())
