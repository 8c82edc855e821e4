"""The completions engine against a real HTTP server that answers as vLLM does, and as others do."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from rag_r1.agent import Generation
from rag_r1.inference.client import Endpoint, EndpointOptions, EngineFailure
from rag_r1.inference.engines import completions
from rag_r1.inference.engines.completions import CompletionEngine, returns_token_ids
from rag_r1.inference.episode_client import EpisodeClient, Reply
from rag_r1.protocols import load_protocol
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.response_cache import ResponseCache, Usage
from tests.evaluation.scripted_runs import folder_at
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_engine import Characters

SQ = load_protocol("rag_r1_sq")
TEXT = "<answer> Rome </answer>"


def vllm(body: dict) -> dict:
    """An answer in vLLM 0.27's form (entrypoints/openai/completion/protocol.py)."""
    ids = list(map(ord, TEXT))[: body["max_tokens"]]
    logprobs = {"token_logprobs": [-0.5] * len(ids), "tokens": [], "top_logprobs": [], "text_offset": []}
    choice = {
        "index": 0,
        "text": TEXT,
        "logprobs": logprobs if body.get("logprobs") is not None else None,
        "finish_reason": "stop",
        "stop_reason": "</answer>",
        "token_ids": ids if body.get("return_token_ids") else None,
        "prompt_token_ids": body["prompt"] if body.get("return_token_ids") else None,
    }
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
    return {"object": "text_completion", "choices": [choice], "usage": usage}


def others(body: dict) -> dict:
    """A server that knows nothing of token ids in its answers."""
    return {"choices": [{"text": TEXT.removesuffix("</answer>"), "finish_reason": "stop"}]}


@asynccontextmanager
async def endpoint_of(answer, retries=1):
    with OpenAIServer(answer) as server:
        endpoint = Endpoint(EndpointOptions(server.url, retries=retries, backoff_s=0.0), CancelToken())
        try:
            yield endpoint, server.bodies
        finally:
            await endpoint.close()


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def generate(answer, **given) -> tuple[Generation, dict]:
    """What the engine returns for a context, and the request."""

    async def main():
        async with endpoint_of(answer) as (endpoint, bodies):
            exchanges = EpisodeClient("a#0", endpoint, ResponseCache())
            sampling = {"model": "m", "temperature": 1.2, "top_p": None}
            engine = CompletionEngine(exchanges, Characters(), SQ, sampling, 7, **given)
            return await engine.generate([5, 6, 7], 100, SQ.stop), bodies[0]

    return run(main())


def test_token_ids_go_out_and_come_back_as_they_are():
    out, body = generate(vllm)
    assert out == Generation(list(map(ord, TEXT)))
    assert body.pop("seed") < 1 << 31
    assert body == {
        "model": "m",
        "temperature": 1.2,
        "prompt": [5, 6, 7],
        "max_tokens": 100,
        "stop": list(SQ.stop),
        "include_stop_str_in_output": True,
        "return_token_ids": True,
    }


def test_log_probs_come_with_the_ids_if_they_are_asked_for():
    out, body = generate(vllm, logprobs=True)
    assert out.logprobs == [-0.5] * len(TEXT) and body["logprobs"] == 0


async def test_the_users_own_limit_is_the_most_that_a_request_may_generate():
    client = AsyncMock(**{"ask.return_value": Reply(TEXT, ids=[1])})
    engine = CompletionEngine(client, Characters(), SQ, {"model": "m"}, 7, extra_body={"max_tokens": 900})
    await engine.generate([5], 100, SQ.stop)
    assert client.ask.call_args.args[3] == 900


def test_without_ids_the_text_is_encoded_and_its_stop_string_put_back():
    out, _ = generate(others, returns_ids=False)
    assert out == Generation(list(map(ord, TEXT)))


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": None},
        {"token_ids": []},
        {"token_ids": ["1"]},
        {"token_ids": [-1]},
        {"token_ids": [True]},
        {"logprobs": {"token_logprobs": [-0.5]}},
        {"logprobs": {"token_logprobs": [None] * len(TEXT)}},
        {"logprobs": {"token_logprobs": [True] * len(TEXT)}},
        {"logprobs": {"token_logprobs": [-(10**400)] * len(TEXT)}},
        {"logprobs": "x"},
    ],
)
def test_ids_or_log_probs_that_cannot_be_are_a_failure(change):
    def broken(body):
        answer = vllm(body)
        answer["choices"][0] |= change
        return answer

    with pytest.raises(EngineFailure, match="a useless answer"):
        generate(broken, logprobs=True)


@pytest.mark.parametrize(("answer", "returned"), [(vllm, True), (others, False)])
async def test_a_probe_tells_whether_ids_are_returned(answer, returned):
    async with endpoint_of(answer) as (endpoint, bodies):
        assert await returns_token_ids(endpoint, "m", [1, 2], {"user": "u", "max_tokens": 99}) is returned
        assert bodies[0]["max_tokens"] == 1 and bodies[0]["user"] == "u"


async def test_a_probe_of_something_else_is_a_failure():
    async with endpoint_of(lambda body: {"error": "no"}) as (endpoint, _):
        with pytest.raises(EngineFailure):
            await returns_token_ids(endpoint, "m", [1, 2], {})


async def test_an_answer_is_on_the_tape_before_it_is_used_and_is_not_asked_for_again(tmp_path: Path):
    async with endpoint_of(vllm) as (endpoint, bodies):
        for start in (1, 2):
            with folder_at(tmp_path) as folder:
                exchanges = EpisodeClient("a#0", endpoint, folder.cache)
                engine = CompletionEngine(exchanges, Characters(), SQ, {"model": "m"}, 7)
                first = await engine.generate([5], 100, SQ.stop)
                second = await engine.generate([5, *first.token_ids, 6], 100, SQ.stop)
                assert first.token_ids == second.token_ids == list(map(ord, TEXT))
                assert len(bodies) == 2
                # What an episode has used is the same, whether it was taped or not.
                assert exchanges.usage == Usage(2, 1 + 2 + len(TEXT), 2 * len(TEXT)), start


async def test_the_seeds_after_a_past_are_those_of_its_next_turns():
    async with endpoint_of(vllm) as (endpoint, bodies):
        whole, resumed = (
            CompletionEngine(
                EpisodeClient("t", endpoint, ResponseCache()), Characters(), SQ, {"model": "m"}, 5
            )
            for _ in range(2)
        )
        await whole.generate([1], 50, ())
        await whole.generate([1, 2], 50, ())
        resumed.restore_turn([1], [2])
        await resumed.generate([1, 2], 50, ())
    assert bodies[2] == bodies[1] and bodies[0]["seed"] != bodies[1]["seed"]


@pytest.mark.parametrize(("answer", "said"), [(500, "HTTP 500"), ({"hello": "world"}, "useless answer")])
def test_the_first_token_is_asked_for_twice_at_most(answer, said):
    async def main():
        async with endpoint_of(lambda body: answer, retries=6) as (endpoint, bodies):
            with pytest.raises(EngineFailure, match=said):
                await returns_token_ids(endpoint, "m", [1], {})
            return len(bodies)

    assert run(main()) == 2


def test_a_server_that_lets_the_first_token_wait_too_long_is_named(monkeypatch):
    monkeypatch.setattr(completions, "_FIRST_TOKEN_S", 0.2)

    async def main():
        async with endpoint_of(lambda body: None) as (endpoint, _):
            with pytest.raises(EngineFailure, match=f"{endpoint.base}: no answer within 0.2 s"):
                await returns_token_ids(endpoint, "m", [1], {})

    run(main())
