"""When an engine is left alone."""

from __future__ import annotations

from retrieval_server.web.circuit_breaker import BreakerHold, CircuitBreaker


def down(failures: int = 3) -> CircuitBreaker:
    breaker = CircuitBreaker(failures, cool_down_s=5.0)
    assert [breaker.failed(0.0) for _ in range(failures)] == [False] * (failures - 1) + [True]
    return breaker


def test_failures_in_a_row_close_it_for_a_while_and_an_answer_between_starts_the_count_again():
    breaker = CircuitBreaker(failures=2, cool_down_s=5.0)
    breaker.failed(0.0)
    breaker.answered()
    breaker.failed(1.0)
    assert breaker.hold(1.0) is None
    breaker.failed(1.0)
    assert breaker.hold(2.0) == BreakerHold(4.0, down=True)


def test_after_it_one_request_goes_to_see_and_the_others_are_still_held():
    breaker = down()
    assert breaker.hold(5.0) is None
    assert breaker.hold(5.0) == BreakerHold(5.0, down=True)
    breaker.answered()
    assert breaker.hold(5.0) is breaker.hold(5.0) is None


def test_a_probe_that_fails_closes_it_again():
    breaker = down()
    assert breaker.hold(5.0) is None
    assert not breaker.failed(6.0)
    assert breaker.hold(10.0) == BreakerHold(1.0, down=True)


def test_a_probe_that_was_given_up_leaves_the_way_to_the_next():
    breaker = down()
    assert breaker.hold(5.0) is None
    breaker.abandoned()
    assert breaker.hold(5.0) is None


def test_what_one_request_is_told_to_wait_holds_for_all_and_is_no_failure():
    breaker = down(1)
    assert breaker.hold(5.0) is None
    breaker.limited(5.0, 30.0)
    assert breaker.hold(10.0) == BreakerHold(25.0, down=False)
    breaker.limited(10.0, 1.0)
    assert breaker.hold(12.0) == BreakerHold(23.0, down=False)
    assert breaker.hold(35.0) is None
