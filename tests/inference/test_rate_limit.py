"""The pace of requests, in virtual time, and the limit of what they may cost."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.inference.cost_limit import CostTracker
from rag_r1.inference.rate_limit import RateLimiter
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.response_cache import Usage
from tests.fakes import virtual_time


def sent_at(pace: RateLimiter, tokens: list[int], corrections: dict[int, int] | None = None) -> list[float]:
    """When each request was sent, if all want to be at once."""
    times: list[float] = []

    async def main():
        async def one(i: int):
            await pace.wait_turn(tokens[i])
            times.append(asyncio.get_running_loop().time())
            if corrections and i in corrections:
                pace.correct(tokens[i], corrections[i])

        for i in range(len(tokens)):
            await one(i)

    virtual_time.run(main())
    return times


def test_requests_are_spaced_by_their_number_and_by_their_tokens():
    assert sent_at(RateLimiter(requests_per_min=60), [0] * 4) == pytest.approx([0, 1, 2, 3])
    assert sent_at(RateLimiter(tokens_per_min=600), [10, 20, 10, 10]) == pytest.approx([0, 1, 3, 4])
    assert sent_at(RateLimiter(requests_per_min=30, tokens_per_min=600), [10, 100, 10]) == pytest.approx(
        [0, 2, 12]
    )
    assert sent_at(RateLimiter(), [5, 5]) == [0, 0]


def test_an_estimate_is_corrected_when_the_tokens_are_known():
    assert sent_at(RateLimiter(tokens_per_min=600), [100, 10, 10], {0: 20}) == pytest.approx([0, 2, 3])


def test_a_pause_holds_back_all_requests():
    times: list[float] = []

    async def main():
        pace = RateLimiter()
        pace.pause(7)
        pace.pause(3)

        async def one():
            await pace.wait_turn(1)
            times.append(asyncio.get_running_loop().time())

        await asyncio.gather(one(), one())

    virtual_time.run(main())
    assert all(7 <= time <= 7.21 for time in times) and len(times) == 2


def test_requests_that_a_pause_holds_back_keep_within_the_limit():
    async def main():
        pace = RateLimiter(requests_per_min=60)
        turns = [asyncio.create_task(pace.wait_turn(1)) for _ in range(4)]
        await asyncio.sleep(1.5)
        pace.pause(10)
        await asyncio.sleep(10.5)
        return [turn.done() for turn in turns]

    assert virtual_time.run(main()) == [True, True, True, False]


@settings(max_examples=40)
@given(
    limit=st.floats(0.5, 30),
    requests=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.floats(0, 1)), max_size=30),
)
def test_the_limit_is_never_passed_and_what_fits_is_sent(limit, requests):
    """Each request reserves its most and uses a part of it; a million tokens cost a million."""
    stop = CancelToken()
    answered: list[int] = []
    costs: list[float] = []

    async def main():
        spending = CostTracker(stop, price_in=1e6, price_out=1e6, max_cost=limit)

        async def one(prompt: int, most: int, part: float):
            async with spending.reserved(prompt, most):
                await asyncio.sleep(part)
                spending.usage.add(Usage(1, prompt, int(most * part)))
            answered.append(prompt + most)
            costs.append(spending.cost)

        tasks = [asyncio.create_task(one(*request)) for request in requests]
        stopped = asyncio.create_task(stop.wait())
        if tasks:
            await asyncio.wait({asyncio.gather(*tasks), stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, stopped):
            task.cancel()
        await asyncio.gather(*tasks, stopped, return_exceptions=True)
        return spending

    spending = virtual_time.run(main())
    assert max([*costs, spending.cost]) <= limit
    if stop.reason is None:
        assert len(answered) == len(requests)
    else:
        assert "of --max-cost" in stop.reason
        assert any(spending.cost + prompt + most > limit for prompt, most, _ in requests)


def test_earlier_starts_count():
    async def main():
        spending = CostTracker(CancelToken(), 2.0, 4.0, earlier=Usage(3, 1_000_000, 500_000))
        spending.usage.add(Usage(1, 500_000, 0))
        return spending.cost, spending.usage

    cost, usage = virtual_time.run(main())
    assert cost == pytest.approx(5.0) and usage == Usage(4, 1_500_000, 500_000)


def test_the_first_reason_to_stop_counts():
    async def main():
        stop = CancelToken()
        await stop.block_if_cancelled()
        stop("one")
        stop("two")
        await stop.wait()
        passing = asyncio.create_task(stop.block_if_cancelled())
        await asyncio.sleep(100)
        assert not passing.done()
        passing.cancel()
        return stop.reason

    assert virtual_time.run(main()) == "one"
