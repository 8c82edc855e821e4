"""Replies that must have a form: what is requested again, what ends the run, and what does not."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from rag_r1.inference.client import Endpoint, EndpointOptions, EngineFailure
from rag_r1.inference.episode_client import with_own_keys
from rag_r1.inference.judging import request_body
from rag_r1.inference.strict_replies import (
    ATTEMPTS,
    MAX_CONSECUTIVE_FAILURES,
    MAX_USELESS,
    StrictReplies,
    json_of,
)
from rag_r1.rollouts.concurrency import JobPool
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.response_cache import ResponseCache
from tests.fakes.openai_server import OpenAIServer


def number(reply: str) -> int:
    value = json_of(reply)
    if not isinstance(value, int):
        raise ValueError("no number")
    return value


def replies(server: OpenAIServer, folder: Path, count: int) -> tuple[list[int | None], StrictReplies]:
    """What `count` asks end with: their numbers."""

    async def work() -> tuple[list[int | None], StrictReplies]:
        stop, tape = CancelToken(), ResponseCache.open(folder)
        endpoint = Endpoint(EndpointOptions(server.base, retries=0, backoff_s=0.0), stop)
        asker = StrictReplies("judge", endpoint, tape)

        async def ask(place: int) -> int | None:
            def make(attempt: int):
                return request_body("m", "A number.", {"place": place}, 10, seed=attempt), 10

            try:
                return await asker.ask(f"ask/{place}", make, number)
            except EngineFailure:
                return None

        try:
            jobs = [partial(ask, place) for place in range(count)]
            return await JobPool(2, stop, endpoint.idle).run(jobs, count, "ask"), asker
        finally:
            await endpoint.close()
            tape.close()

    return asyncio.run(asyncio.wait_for(work(), 60))


def test_a_wrong_reply_is_requested_again_and_a_right_one_never(tmp_path):
    with OpenAIServer(lambda body: "five" if body["seed"] < 2 else "5") as server:
        assert replies(server, tmp_path, 3)[0] == [5, 5, 5] and len(server.bodies) == 3 * ATTEMPTS
        assert replies(server, tmp_path, 3)[0] == [5, 5, 5] and len(server.bodies) == 3 * ATTEMPTS


def test_after_the_last_attempt_there_is_nothing(tmp_path):
    with OpenAIServer(lambda body: "7" if "0" in body["messages"][1]["content"] else "seven") as server:
        values, asker = replies(server, tmp_path, 3)
    assert values == [7, None, None] and asker.counts == {"refused": 2 * ATTEMPTS}


def test_a_request_that_is_declined_is_not_the_end_after_an_answer(tmp_path):
    with OpenAIServer(lambda body: "7" if '"place": 0' in body["messages"][1]["content"] else 400) as server:
        values, asker = replies(server, tmp_path, 5)
    assert values == [7, None, None, None, None] and asker.endpoint.stop.reason is None


def test_a_model_of_which_no_reply_has_the_form_ends_the_run_with_the_reason(tmp_path):
    with OpenAIServer(lambda body: "<think> I wonder.") as server:
        _, asker = replies(server, tmp_path, MAX_USELESS)
    assert f"none of {MAX_USELESS} replies of the judge" in asker.endpoint.stop.reason
    assert len(server.bodies) <= MAX_USELESS + 2


def test_one_right_reply_shows_that_the_model_can(tmp_path):
    with OpenAIServer(
        lambda body: "1" if '"place": 0' in body["messages"][1]["content"] else "one"
    ) as server:
        values, asker = replies(server, tmp_path, MAX_USELESS // ATTEMPTS + 10)
    assert values[0] == 1 and asker.counts["refused"] > MAX_USELESS and asker.endpoint.stop.reason is None


def test_an_endpoint_that_is_gone_ends_the_run(tmp_path):
    with OpenAIServer(lambda body: 500) as server:
        _, asker = replies(server, tmp_path, MAX_CONSECUTIVE_FAILURES + 20)
    assert "got no answer from the judge" in asker.endpoint.stop.reason
    assert len(server.bodies) <= MAX_CONSECUTIVE_FAILURES + 2


@pytest.mark.parametrize("reply", ["[1]", "```json\n[1]\n```", "```JSON\n[1]\n```", " \n[1] "])
def test_a_value_is_read_with_or_without_a_fence(reply):
    assert json_of(reply) == [1]


#: A reply of a model that repeats itself.
LOOP = "```" + "\n" * 3000 + "x"


@pytest.mark.parametrize("reply", ["", "[1] and more", "Here: [1]", "[" * 100_000, "```\n[1]", LOOP])
def test_anything_beside_the_value_is_refused(reply):
    with pytest.raises(ValueError):
        json_of(reply)


def test_the_users_own_keys_replace_ours_and_say_how_long_a_reply_is():
    body = request_body("m", "x", {}, 10)
    merged, most = with_own_keys(body, {"max_tokens": None, "max_completion_tokens": 500, "top_k": 3}, 10)
    assert "max_tokens" not in merged and (merged["top_k"], most) == (3, 500)
    assert with_own_keys(body, {"max_completion_tokens": 500}, 10)[1] == 500
    assert with_own_keys(body, {}, 10) == (json.loads(json.dumps(body)), 10)
