"""Retries, pauses, and giving up, against a real server that misbehaves."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
import time
from contextlib import asynccontextmanager
from email.utils import formatdate

import pytest

from retrieval_server.errors import SearchFailedError
from retrieval_server.web.circuit_breaker import CircuitBreaker
from retrieval_server.web.client import WebClient
from retrieval_server.web.engines import ENGINES
from retrieval_server.web.options import WebOptions
from tests.fakes.waiting import wait_until

from .conftest import KEY

QUICK = WebOptions(backoff_s=0.001)


@pytest.fixture
def client_of(stub, environment):
    """client_of(options, url, breaker): a client of the stub."""

    @asynccontextmanager
    async def opened(options=QUICK, url=None, breaker=None):
        client = WebClient(ENGINES[stub.api], url or stub.url, KEY, options)
        client.breaker = breaker or client.breaker
        try:
            async with asyncio.timeout(30):
                yield client
        finally:
            await client.close()

    return opened


async def failure_of(client_of, **settings) -> SearchFailedError:
    with pytest.raises(SearchFailedError) as failed:
        await search(client_of, **settings)
    return failed.value


async def search(client_of, **settings):
    async with client_of(**settings) as client:
        return await client.search("x", 10)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_what_may_pass_is_tried_again(stub, client_of, status):
    stub.script = [(status, {}, b"busy")] * 2
    assert len(await search(client_of)) == 10
    assert stub.queries == ["x"] * 3


@pytest.mark.parametrize(
    "status, word", [(429, "web_limited"), (503, "web_unavailable"), (500, "web_unavailable")]
)
async def test_what_does_not_pass_is_503_with_the_engines_own_words(stub, client_of, status, word):
    stub.script = [(status, {}, json.dumps({"error": {"message": "come back later"}}).encode())] * 3
    failed = await failure_of(client_of)
    assert (failed.status, failed.error, failed.retry_after) == (503, word, 1)
    assert failed.reason == f"serper: HTTP {status} (come back later)"


@pytest.mark.parametrize(
    "status, answer, word",
    [(401, 502, "web_refused"), (403, 502, "web_refused"), (402, 502, "web_refused")]
    + [(400, 422, "web_bad_query"), (422, 422, "web_bad_query"), (414, 422, "web_bad_query")],
)
async def test_a_refusal_is_told_at_once(stub, client_of, status, answer, word):
    stub.script = [(status, {}, b'{"message": "no"}')]
    failed = await failure_of(client_of)
    assert (failed.status, failed.error) == (answer, word) and f"HTTP {status} (no)" in failed.reason
    assert len(stub.requests) == 1
    assert ("SERPER_API_KEY" in failed.reason) == (answer == 502)


async def test_the_key_is_in_no_error_no_log_and_no_repr(stub, client_of, caplog):
    caplog.set_level(logging.DEBUG)
    echo = {"error": f"bad key {KEY}", "url": f"https://a.org/?key={KEY}"}
    for status in (401, 400, 500, 200):
        stub.script = [(status, {}, json.dumps(echo if status != 200 else [echo]).encode())] * 3
        failed = await failure_of(client_of)
        assert KEY not in failed.reason + str(failed) + repr(failed)
        assert status == 200 or "bad key [key]" in failed.reason
    assert KEY not in caplog.text
    assert KEY not in repr(WebClient(ENGINES["serper"], stub.url, KEY, QUICK))


async def test_a_redirect_is_not_followed_with_the_key(stub, client_of):
    stub.script = [(302, {"Location": stub.url + "/elsewhere"}, b"")]
    failed = await failure_of(client_of)
    assert (failed.status, failed.error) == (502, "web_bad_answer") and len(stub.requests) == 1


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"[]", b'{"organic": 5}', b'{"organic": [5]}', b"[" * 100_000, b"\xff\xfe\xfa"],
    ids=["html", "a list", "no list", "no objects", "deep", "no text"],
)
async def test_an_answer_that_is_not_the_apis_json_is_502(stub, client_of, body):
    stub.script = [(200, {}, body)]
    failed = await failure_of(client_of)
    assert (failed.status, failed.error) == (502, "web_bad_answer")


async def test_an_answer_without_end_is_cut_off(stub, client_of, monkeypatch):
    monkeypatch.setattr("retrieval_server.web.client.MAX_ANSWER_BYTES", 1000)
    assert (await failure_of(client_of)).error == "web_unavailable" and len(stub.requests) == 3


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"organic": [' + b"[]," * 1_000_000 + b"[]]}", "it has more than 200,000 values"),
        (b'{"organic": [' + b"]" * 1_000_000, "it has more than 200,000 values"),
        (b'{"organic": ' + b'"",' * 2_000_000, "it has more than 200,000 values"),
        (b'{"organic": ' + b"[" * 100 + b"]" * 100 + b"}", "it is nested more than 64 deep"),
    ],
)
async def test_an_answer_of_a_million_values_becomes_no_objects(stub, client_of, monkeypatch, body, why):
    monkeypatch.setattr("retrieval_server.json_limits.json", None)  # whatever reads it fails
    stub.script = [(200, {}, body)]
    failed = await failure_of(client_of)
    assert (failed.status, failed.error) == (502, "web_bad_answer") and why in str(failed)
    stub.script = [(400, {}, body)]
    assert "HTTP 400" in str(await failure_of(client_of))


async def test_a_compressed_answer_is_unpacked(stub, client_of):
    results = [{"title": "a", "link": f"https://e.org/{n}", "snippet": "b"} for n in range(10)]
    whole = json.dumps({"organic": results}).encode()
    stub.script = [(200, {"Content-Encoding": "gzip"}, gzip.compress(whole))]
    assert len(await search(client_of)) == 10 and stub.requests[0].headers["accept-encoding"] == "gzip"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b" " * (64 << 20))),
        ("gzip", gzip.compress(b"{}")[:-4]),
        ("gzip", b"{}"),
        ("br", b"\x00"),
        ("gzip, gzip", gzip.compress(gzip.compress(b"{}"))),
    ],
)
async def test_a_bomb_or_another_compression_is_no_answer(stub, client_of, encoding, body):
    stub.script = [(200, {"Content-Encoding": encoding}, body)] * 3
    assert (await failure_of(client_of)).error == "web_unavailable" and len(stub.requests) == 3


async def test_an_engines_words_cannot_control_a_terminal(stub, client_of):
    stub.script = [(400, {}, json.dumps({"message": "\x1b[2J bad\u202e query"}).encode())]
    assert "bad" in (message := str(await failure_of(client_of))) and message.isprintable()


async def test_an_engine_that_does_not_answer_costs_the_time_out_and_the_retries(stub, client_of):
    stub.gate.clear()
    failed = await failure_of(client_of, options=WebOptions(timeout_s=0.2, retries=1, backoff_s=0.001))
    assert (failed.status, failed.error) == (503, "web_unavailable")
    assert "no answer within 0.2 s" in failed.reason
    # On a busy machine the client may give up before the stub's thread has read the request.
    wait_until(lambda: len(stub.requests) == 2)


async def test_a_short_retry_after_is_sat_out_and_a_long_one_is_told_to_everybody_unasked(stub, client_of):
    async with client_of() as client:
        stub.script = [(429, {"Retry-After": "0"}, b"")]
        assert len(await client.search("x", 10)) == 10
        stub.script = [(429, {"Retry-After": "3600"}, b"")]
        for _ in range(2):
            with pytest.raises(SearchFailedError, match="asked for a pause of 3600 s") as failed:
                await client.search("y", 10)
            assert (failed.value.status, failed.value.error) == (503, "web_limited")
            assert 3590 < failed.value.retry_after <= 3600
        assert stub.queries == ["x", "x", "y"]


@pytest.mark.parametrize(
    "value, understood",
    [
        ("3600", True),
        (3600, True),  # as a date
        (9e8, False),
        ("9000000", False),
        ("9" * 4000, False),
        ("soon", False),
        ("-5", False),
        ("", False),
    ],
)
async def test_retry_after_may_be_a_date_and_nonsense_is_ignored(stub, client_of, value, understood):
    value = value if isinstance(value, str) else formatdate(time.time() + value)
    stub.script = [(503, {"Retry-After": value}, b"")]
    if understood:
        assert (await failure_of(client_of)).error == "web_limited"
    else:
        assert len(await search(client_of)) == 10


async def test_a_dead_engine_is_noticed_and_then_no_query_waits_for_it(client_of, caplog):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
    async with client_of(url=url) as client:
        searches = (client.search(f"{number}", 10) for number in range(20))
        failures = await asyncio.gather(*searches, return_exceptions=True)
        assert {(failed.status, failed.error) for failed in failures} == {(503, "web_unavailable")}
        with pytest.raises(SearchFailedError, match="not asked: its last requests all failed") as failed:
            await client.search("x", 10)
        assert 1 <= failed.value.retry_after <= 5
    assert caplog.text.count("counts as down") == 1


async def test_it_is_asked_again_when_it_is_back(stub, client_of):
    async with client_of(breaker=CircuitBreaker(failures=2, cool_down_s=0.0)) as client:
        stub.script = [(500, {}, b"")] * 2
        with pytest.raises(SearchFailedError):
            await client.search("x", 10)
        assert client.breaker.is_down and len(stub.requests) == 2  # not three: what is down is not retried
        assert len(await client.search("x", 10)) == 10
        assert not client.breaker.is_down


async def test_connections_are_kept(stub, client_of):
    async with client_of() as client:
        for number in range(3):
            await client.search(str(number), 10)
    assert stub.connections == 1
