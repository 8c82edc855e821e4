"""The retry policy of all HTTP clients, and that there is no second one."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.io import retry as module
from rag_r1.io.retry import RetryPolicy, TransientError, backoff, is_transient, retry_after, with_retries

ROOT = Path(__file__).parents[2]
POLICY = RetryPolicy(retries=2, backoff_s=1.0, longest_wait_s=30.0)


def test_the_back_off_doubles_with_jitter_and_is_bounded(monkeypatch):
    bounds = []
    monkeypatch.setattr(module.random, "uniform", lambda *limits: bounds.append(limits) or 1.5)
    assert [POLICY.delay(attempt) for attempt in range(6)] == [1.5, 3, 6, 12, 24, 30]
    assert set(bounds) == {(0.5, 1.5)}
    assert POLICY.delay(10_000) == 30 and backoff(0.0, 10_000) == 0


def test_what_the_server_asks_for_is_waited_for_at_least_and_within_the_limit():
    assert POLICY.delay(0, 20.0) == 20 and POLICY.delay(0, 99.0) == 30
    assert 0.5 <= POLICY.delay(0, 0.1) <= 1.5


@pytest.fixture
def waits(monkeypatch):
    """The seconds that were waited, without waiting."""
    seconds: list[float] = []

    async def sleep(delay_s: float) -> None:
        seconds.append(delay_s)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    return seconds


def attempts(*outcomes):
    """A function that returns, or raises, these one after the other."""
    rest = iter(outcomes)

    async def attempt():
        if isinstance(outcome := next(rest), Exception):
            raise outcome
        return outcome

    return attempt


def test_what_may_pass_is_repeated_until_it_succeeds(waits):
    busy = attempts(TransientError("busy", 7.0), TransientError("busy"), "done")
    assert asyncio.run(with_retries(POLICY, busy)) == "done"
    assert waits[0] == 7 and 1 <= waits[1] <= 3 and len(waits) == 2


def test_the_last_attempt_tells_its_number_and_keeps_the_cause(waits):
    async def fail():
        raise TransientError("HTTP 503", 4.0) from OSError("why")

    with pytest.raises(TransientError, match=r"^HTTP 503 \(attempt 3, the last\)$") as caught:
        asyncio.run(with_retries(POLICY, fail))
    assert caught.value.wait_s == 4 and isinstance(caught.value.__cause__, OSError) and waits == [4, 4]


def test_any_other_error_is_not_repeated(waits):
    with pytest.raises(KeyError):
        asyncio.run(with_retries(POLICY, attempts(KeyError("bug"), "done")))
    assert waits == []


def test_statuses_that_may_pass():
    transient = [status for status in range(100, 600) if is_transient(status)]
    assert transient == [408, 409, 425, 429, 500, *range(502, 600)]


def after(value: str) -> float:
    return retry_after({"Retry-After": value})


def test_retry_after_is_read_as_seconds_or_as_a_date(monkeypatch):
    monkeypatch.setattr(module.time, "time", lambda: 1e9)
    assert [after(value) for value in ("7", " 0.5 ", "", "soon", "-3", "9" * 30)] == [7, 0.5, 0, 0, 0, 0]
    assert after(formatdate(1e9 + 60, usegmt=True)) == 60
    assert after(formatdate(1e9 - 60, usegmt=True)) == 0
    assert retry_after({}) == retry_after(None) == 0


@settings(max_examples=50)
@given(st.text())
def test_no_retry_after_raises(value):
    assert after(value) >= 0


#: Where random pauses are drawn that are no back-off.
PAUSES = {"rag_r1/inference/rate_limit.py": "requests that were held back together do not go on together"}


#: Only a source with one of these is parsed.
TRACES = re.compile(r"retry-after|parsedate_to_datetime|2(\.0)? ?\*\*|1 ?<<|uniform", re.IGNORECASE)


def second_policies(path: str, source: str) -> Iterator[str]:
    """What in a module is a parser of Retry-After, or a formula of back-off, of its own."""
    for node in ast.walk(ast.parse(source)) if TRACES.search(source) else ():
        match node:
            case (
                ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_])
                | ast.Subscript(slice=ast.Constant(value=str(name)), ctx=ast.Load())
            ):
                if name.lower() == "retry-after":
                    yield f"{path}:{node.lineno}: reads Retry-After"
            case ast.alias(name="parsedate_to_datetime"):
                yield f"{path}: reads a date of HTTP"
            case ast.BinOp(op=ast.Mult()):
                for power in (node.left, node.right):
                    match power:
                        case ast.BinOp(right=ast.Constant()):  # a size, 64 * 2**20
                            pass
                        case ast.BinOp(op=ast.Pow(), left=ast.Constant(value=2 | 2.0)):
                            yield f"{path}:{node.lineno}: doubles"
                        case ast.BinOp(op=ast.LShift(), left=ast.Constant(value=1)):
                            yield f"{path}:{node.lineno}: doubles"
            case ast.Call(func=ast.Attribute(attr="uniform") | ast.Name(id="uniform")):
                if path not in PAUSES:
                    yield f"{path}:{node.lineno}: has jitter"


def test_no_other_module_has_a_retry_policy():
    modules = {str(path.relative_to(ROOT)): path for path in (ROOT / "rag_r1").rglob("*.py")}
    policy = modules.pop("rag_r1/io/retry.py")
    faults = [
        fault
        for name, path in modules.items()
        for fault in second_policies(name, path.read_text(encoding="utf-8"))
    ]
    assert faults == []
    kinds = {fault.split(": ")[1] for fault in second_policies("x", policy.read_text(encoding="utf-8"))}
    assert kinds == {"reads Retry-After", "reads a date of HTTP", "doubles", "has jitter"}


@pytest.mark.parametrize(
    "source",
    [
        "wait = headers['Retry-After']",
        "wait = response.headers.get('retry-after')",
        "from email.utils import parsedate_to_datetime",
        "await asyncio.sleep(wait_s * 2**attempt)",
        "time.sleep(2**attempt * 0.5)",
        "time.sleep(wait_s * (1 << attempt))",
        "wait = base * random.uniform(0.5, 1.5)",
    ],
)
def test_a_second_policy_is_recognised(source):
    assert len(list(second_policies("x", source))) == 1


def test_what_only_sends_the_header_is_no_parser():
    assert list(second_policies("x", "headers = {'Retry-After': '5'}; 2**bits")) == []
