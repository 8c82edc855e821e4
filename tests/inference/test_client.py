"""The client of an endpoint against a real HTTP server that misbehaves in every way it can."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.inference import client as module
from rag_r1.inference.chat_completions_api import read_chat
from rag_r1.inference.client import Endpoint, EndpointOptions, EngineFailure, base_address
from rag_r1.inference.episode_client import EpisodeClient
from rag_r1.inference.response_metadata import error_message, usage_of
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.errors import RunError
from rag_r1.runs.response_cache import ResponseCache, Usage
from tests.fakes.openai_server import OpenAIServer, Reply

BODY = {"model": "m", "messages": [{"role": "user", "content": "Who?"}]}
USAGE = {"prompt_tokens": 11, "completion_tokens": 3}


def says(content="Rome", **more) -> web.Response:
    choice = {"message": {"content": content}, "finish_reason": "stop"}
    return web.json_response({"choices": [choice], "usage": USAGE, **more})


@asynccontextmanager
async def endpoint_of(*answers: Callable[[], Reply] | Reply, **options):
    """An endpoint, and its server, which gives these answers in turn, the last for ever."""

    def reply(body: dict) -> Reply:
        answer = answers[min(len(server.bodies), len(answers)) - 1]
        return answer() if callable(answer) else answer

    with OpenAIServer(reply) as server:
        values = {"url": server.url, "backoff_s": 0.0, "retries": 2, "timeout_s": 5.0, **options}
        endpoint = Endpoint(EndpointOptions(**values), CancelToken())
        try:
            yield endpoint, server
        finally:
            await endpoint.close()


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


async def ask(endpoint: Endpoint, body=BODY):
    async def attempt():
        async with endpoint.post("/chat/completions", body) as response:
            return read_chat(response.data), response.usage

    return await endpoint.retried(attempt)


async def until_stopped(endpoint: Endpoint) -> str:
    """The reason for which the run is ended by a request."""
    task = asyncio.create_task(ask(endpoint))
    await endpoint.stop.wait()
    await endpoint.idle()
    assert not task.done()
    task.cancel()
    return endpoint.stop.reason


async def test_a_request_is_answered_and_counted():
    async with endpoint_of(lambda: says()) as (endpoint, server):
        reply, usage = await ask(endpoint)
        assert (reply.text, reply.finish, usage) == ("Rome", "stop", Usage(1, 11, 3))
        assert server.bodies == [BODY] and endpoint.spending.usage == Usage(1, 11, 3)
        assert server.headers[0]["Accept-Encoding"] == "identity"


MALFORMED = {
    "not JSON": lambda: web.Response(text="<html>", content_type="application/json"),
    "half JSON": lambda: web.Response(text='{"choices": [{"mess'),
    "nothing": lambda: web.Response(text=""),
    "no object": lambda: web.json_response([1]),
    "no choices": lambda: web.json_response({"usage": USAGE}),
    "empty choices": lambda: web.json_response({"choices": []}),
    "choices of another type": lambda: web.json_response({"choices": {"message": 1}}),
    "a choice of another type": lambda: web.json_response({"choices": ["Rome"]}),
    "no message": lambda: web.json_response({"choices": [{}]}),
    "content of another type": lambda: says(5),
    "no content": lambda: says(None),
    "empty content": lambda: says(""),
    "blank content": lambda: says(" \n"),
    "broken off": lambda: web.json_response(
        {"choices": [{"message": {"content": "Ro"}, "finish_reason": "abort"}]}
    ),
    "deep nesting": lambda: web.Response(text="[" * 100_000),
    "500": lambda: web.Response(status=500, text="oops"),
    "503": lambda: web.json_response({"error": {"message": "busy"}}, status=503),
    "408": lambda: web.Response(status=408),
    "429": lambda: web.Response(status=429, headers={"Retry-After": "0"}),
    "disconnect": lambda: ConnectionError,
}


async def test_what_may_pass_is_asked_again():
    answers = [answer for fault in MALFORMED.values() for answer in (fault, fault, lambda: says())]

    async with endpoint_of(*answers) as (endpoint, server):
        for number, name in enumerate(MALFORMED, 1):
            reply, _ = await ask(endpoint)
            assert (reply.text, len(server.bodies)) == ("Rome", 3 * number), name


@pytest.mark.parametrize("fault", ["no choices", "503", "half JSON", "disconnect"])
async def test_after_the_last_attempt_it_is_a_failure_of_the_engine(fault):
    async with endpoint_of(MALFORMED[fault], retries=1) as (endpoint, server):
        with pytest.raises(EngineFailure, match=r"\(attempt 2, the last\)"):
            await ask(endpoint)
        assert len(server.bodies) == 2


async def test_an_answer_that_does_not_come_is_asked_for_again():
    async with endpoint_of(lambda: None, lambda: says(), timeout_s=0.3) as (endpoint, server):
        reply, _ = await ask(endpoint)
        assert reply.text == "Rome" and len(server.bodies) == 2
    async with endpoint_of(lambda: None, timeout_s=0.2, retries=0) as (endpoint, _):
        with pytest.raises(EngineFailure, match=rf"^{re.escape(endpoint.base)}: no answer within 0\.2 s"):
            await ask(endpoint)


async def test_a_closed_port_is_a_failure_with_its_address_and_a_reason():
    endpoint = Endpoint(EndpointOptions("http://127.0.0.1:9", retries=0), CancelToken())
    with pytest.raises(EngineFailure, match="^http://127.0.0.1:9/v1: no answer: ClientConnectorError"):
        await ask(endpoint)
    await endpoint.close()


async def test_a_request_that_is_refused_is_not_repeated():
    error = web.json_response({"error": {"message": "too \x1b[31mlong\n"}}, status=400)
    async with endpoint_of(error) as (endpoint, server):
        with pytest.raises(EngineFailure, match=r"refused: HTTP 400: too \[31mlong$"):
            await ask(endpoint)
        assert len(server.bodies) == 1


async def test_the_tokens_of_a_useless_answer_are_told_and_counted():
    async with endpoint_of(lambda: says(""), lambda: says()) as (endpoint, _):
        exchanges = EpisodeClient("a", endpoint, tape := ResponseCache())
        await exchanges.ask("/chat/completions", BODY, read_chat, 0)
        assert exchanges.usage == Usage(1, 11, 3) and tape.usage == Usage(2, 22, 6)
        assert endpoint.spending.usage == Usage(2, 22, 6)


async def test_retry_after_holds_back_the_other_requests_too():
    limited = web.Response(status=429, headers={"Retry-After": "200"})
    async with endpoint_of(limited, lambda: says()) as (endpoint, server):
        first = asyncio.create_task(ask(endpoint))
        while endpoint.rate_limiter._paused_until == 0:
            await asyncio.sleep(0.01)
        second = asyncio.create_task(ask(endpoint))
        await asyncio.sleep(0.1)
        assert len(server.bodies) == 1 and not first.done() and not second.done()
        first.cancel()
        second.cancel()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: web.json_response({"error": {"message": "bad key sk-1"}}, status=401), "HTTP 401: bad key"),
        (lambda: web.Response(status=402), "HTTP 402"),
        (lambda: web.Response(status=404, text="no such model"), "HTTP 404: no such model"),
        (lambda: web.Response(status=501, text="no POST"), "HTTP 501: no POST"),
        (
            lambda: web.json_response({"error": {"code": "insufficient_quota", "message": "x"}}, status=429),
            "HTTP 429: x",
        ),
        (lambda: web.Response(status=307, headers={"Location": "http://elsewhere/"}), "redirects"),
        (lambda: web.Response(status=429, headers={"Retry-After": "9999"}), "asked again in 9999 s"),
        (lambda: web.Response(text="<html>", content_type="text/html"), "answers with a web page"),
    ],
)
async def test_what_concerns_all_requests_ends_the_run(answer, reason):
    async with endpoint_of(answer) as (endpoint, server):
        assert reason in await until_stopped(endpoint)
        assert len(server.bodies) == 1


async def test_once_it_has_answered_a_403_is_about_one_request():
    async with endpoint_of(lambda: says(), web.Response(status=403, text="flagged")) as (endpoint, _):
        await ask(endpoint)
        with pytest.raises(EngineFailure, match="HTTP 403: flagged"):
            await ask(endpoint)
        assert endpoint.stop.reason is None


def test_the_key_is_sent_and_never_told(monkeypatch, caplog):
    monkeypatch.setenv("TEACHER_KEY", " sk-secret\n")

    async def main():
        refusal = web.json_response({"error": {"message": "no: sk-secret"}}, status=400)
        async with endpoint_of(refusal, key_variable="TEACHER_KEY") as (endpoint, server):
            with pytest.raises(EngineFailure) as error:
                await ask(endpoint)
            assert server.headers[0]["Authorization"] == "Bearer sk-secret"
            return str(error.value)

    with caplog.at_level("DEBUG"):
        message = run(main())
    assert message == "refused: HTTP 400: no: [key]" and "sk-secret" not in caplog.text


def test_without_a_key_none_is_sent_and_a_broken_one_is_refused_without_being_told(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    async def main():
        async with endpoint_of(lambda: says()) as (endpoint, server):
            await ask(endpoint)
            assert "Authorization" not in server.headers[0]

    run(main())
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a\nsk-b")
    with pytest.raises(RunError, match="OPENAI_API_KEY has characters that a key cannot have") as error:
        Endpoint(EndpointOptions("http://h"), None, module.CostTracker(None))
    assert "sk-a" not in str(error.value)


async def test_an_answer_larger_than_its_request_allows_is_none_and_is_asked_for_again():
    async with endpoint_of(lambda: says("x" * (2 << 20)), lambda: says()) as (endpoint, server):
        reply, _ = await ask(endpoint, {**BODY, "max_tokens": 100})
        assert reply.text == "Rome" and len(server.bodies) == 2


async def test_a_text_that_max_tokens_does_not_allow_is_a_useless_answer():
    async with endpoint_of(lambda: says("x " * 10_000), lambda: says()) as (endpoint, _):
        exchanges = EpisodeClient("a", endpoint, ResponseCache())
        reply = await exchanges.ask("/chat/completions", {**BODY, "max_tokens": 100}, read_chat, 100)
        assert reply.text == "Rome"
        assert exchanges.usage.requests == 1 and endpoint.spending.usage.requests == 2  # both are paid for


async def test_an_answer_that_drips_has_the_time_of_one_answer():
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(b":")
            await asyncio.sleep(0.02)

    app = web.Application()
    app.router.add_post("/v1/completions", drip)
    async with TestServer(app) as server:
        options = EndpointOptions(str(server.make_url("/")), retries=1, timeout_s=0.15, backoff_s=0.0)
        endpoint = Endpoint(options, CancelToken())
        for on_text in (None, lambda: lambda piece: None):
            exchanges = EpisodeClient("a", endpoint, ResponseCache(), on_text)
            with pytest.raises(EngineFailure, match="no answer within 0.15 s"):
                await exchanges.ask("/completions", {"max_tokens": 5}, read_chat, 5)
        await endpoint.close()


def test_requests_under_way_come_back_before_a_stopped_run_ends():
    async def main():
        gate = asyncio.Event()

        async def slow(request: web.Request) -> web.Response:
            await gate.wait()
            return says()

        app = web.Application()
        app.router.add_post("/v1/chat/completions", slow)
        async with TestServer(app) as server:
            endpoint = Endpoint(EndpointOptions(str(server.make_url("/"))), CancelToken())
            first = asyncio.create_task(ask(endpoint))
            while not endpoint._n_pending:
                await asyncio.sleep(0.01)
            endpoint.stop("enough")
            second = asyncio.create_task(ask(endpoint))
            gate.set()
            await endpoint.idle()
            assert (await first)[0].text == "Rome" and not second.done()
            second.cancel()
            await endpoint.close()

    run(main())


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h:1", "http://h:1/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("http://h:1/v1/", "http://h:1/v1"),
        ("https://h/api/v3/chat/completions", "https://h/api/v3"),
        ("http://h/v1/completions", "http://h/v1"),
    ],
)
def test_an_address_is_understood_with_and_without_its_path(url, base):
    assert base_address(url) == base


@pytest.mark.parametrize(
    "url", ["h:1/v1", "ftp://h/v1", "http:///v1", "", "http://user:sk-1@h/v1", "http://h/v1?key=sk-1"]
)
def test_an_address_that_is_none_or_has_a_key_in_it_is_refused(url):
    with pytest.raises(RunError) as error:
        base_address(url)
    assert "sk-1" not in str(error.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: (
        st.lists(children)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "usage",
                    "message",
                    "content",
                    "prompt_tokens",
                    "completion_tokens",
                    "finish_reason",
                ]
            ),
            children,
        )
    ),
    max_leaves=8,
)


def test_a_reply_that_a_filter_withheld_has_no_text():
    choice = {"message": {"content": ""}, "finish_reason": "content_filter"}
    assert read_chat({"choices": [choice]}).text == ""


@settings(max_examples=50)
@given(JSON)
def test_whatever_an_endpoint_says_is_a_reply_or_a_value_error(data):
    assert usage_of(data, 5, 6).requests == 1
    try:
        reply = read_chat(data)
    except ValueError:
        return
    assert isinstance(reply.text, str) and json.dumps(reply.text)
    assert reply.text.strip() or (reply.text, reply.finish) == ("", "content_filter")


def test_a_null_beside_the_message_of_an_error_does_not_hide_it():
    assert error_message(b'{"error": null, "message": "overloaded"}') == ": overloaded"
    assert error_message(b'{"error": {"message": null, "code": 5}}') == ": {'message': None, 'code': 5}"
    assert {error_message(body) for body in (b"", b"{}", b"null", b"[]")} == {""}
