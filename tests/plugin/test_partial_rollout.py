"""The agent loop behind veRL's own client for partial rollout, with servers that abort in the middle.

veRL's asynchronous trainers abort what is being generated, update the weights and let the generations go on
(`FullyAsyncLLMServerClient`). Here the client is veRL's; the servers stand in for its vLLM actors and say
which weights they have through the log-probs of their tokens: -1 for version 1, -2 for version 2, ...
"""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest
from verl.workers.rollout import llm_server
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from tests.plugin.scripted_loop import config, run_loop

SEARCH, ANSWER = "<think> t </think><search> a </search>", "<answer> x </answer>"
NOTHING = {"tool": f"{__name__}:Nothing"}


class Nothing:
    """A search that finds nothing."""

    def __init__(self, options):
        pass

    async def search(self, queries):
        return [[] for _ in queries]


class Remote:
    """An object whose methods are called as those of a Ray actor: `handle.method.remote(...)`."""

    def __init__(self, target):
        self._target = target

    def __getattr__(self, name):
        method = getattr(self._target, name)

        async def call(*args, **kwargs):
            result = method(*args, **kwargs)
            return await result if asyncio.iscoroutine(result) else result

        return SimpleNamespace(remote=lambda *a, **k: asyncio.ensure_future(call(*a, **k)))


class Server:
    """Continues the turn that the context is in, token by token. `aborts`: after how many tokens of the
    trajectory (over all its requests) the running request is aborted and the weights are updated. Stops as
    vLLM does, at a stop string in the text of this request, and then writes on in the policy's words, for a
    policy never stops."""

    def __init__(self, tokenizer, turns, aborts=(), after="<information> made up"):
        self.tokenizer, self.turns, self.aborts, self.after = tokenizer, turns, list(aborts), after
        self.version, self.written, self.requests = 1, 0, []

    async def generate(self, request_id, prompt_ids, sampling_params, **unused):
        self.requests.append(list(prompt_ids))
        response = self.tokenizer.decode(prompt_ids)
        turn = sum(f"{text}\n<information>" in response for text in self.turns)
        written = response.rpartition("</information>\n")[2] if turn else response.removeprefix("Who?")
        script = self.tokenizer.encode(self.turns[turn] + self.after, add_special_tokens=False)
        ids, left = [], script[len(self.tokenizer.encode(written, add_special_tokens=False)) :]
        stop_reason = "completed"
        for token in left[: sampling_params["max_tokens"]]:
            if self.aborts and self.written >= self.aborts[0]:
                self.aborts.pop(0)
                stop_reason = "aborted"
                break
            ids.append(token)
            self.written += 1
            if any(stop in self.tokenizer.decode(ids) for stop in sampling_params["stop"]):
                break
        out = self.output(ids, stop_reason)
        if stop_reason == "aborted":
            self.version += 1  # the weight update, before the request is resumed
        return out

    def output(self, ids, stop_reason="completed"):
        """veRL's output for these tokens, with the version of the weights."""
        return TokenOutput(
            token_ids=ids,
            log_probs=[-float(self.version)] * len(ids),
            stop_reason=stop_reason,
            extra_fields={"global_steps": self.version},
        )


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    """veRL's client sleeps for a second before it resumes; here for none."""
    sleep = asyncio.sleep
    monkeypatch.setattr(llm_server.asyncio, "sleep", lambda seconds: sleep(0))


def play(tokenizer, server, client_class=FullyAsyncLLMServerClient, cfg=None):
    """One trajectory; the turns are told apart by the observations in the context."""
    cfg = cfg or config(retriever=NOTHING)
    client = client_class(cfg, Remote(GlobalRequestLoadBalancer(servers={"one": Remote(server)})))
    return asyncio.run(asyncio.wait_for(run_loop(cfg, client, tokenizer, global_steps=9), 30))


def log_probs(output):
    """The log-probs of the generated tokens."""
    pairs = zip(output.response_logprobs, output.response_mask, strict=True)
    return [logprob for logprob, bit in pairs if bit]


def span(output):
    return output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]


def test_undisturbed_the_asynchronous_client_gives_what_the_synchronous_one_gives(tokenizer):
    asynchronous = play(tokenizer, Server(tokenizer, [SEARCH, ANSWER]))
    synchronous = play(tokenizer, Server(tokenizer, [SEARCH, ANSWER]), LLMServerClient)
    assert asynchronous.response_ids == synchronous.response_ids
    assert asynchronous.response_mask == synchronous.response_mask
    assert asynchronous.response_logprobs == synchronous.response_logprobs
    assert span(asynchronous) == span(synchronous) == (1, 1)


@pytest.mark.parametrize("at", range(0, len(SEARCH + ANSWER), 3))
def test_a_generation_aborted_anywhere_gives_the_same_row_with_each_tokens_own_version(tokenizer, at):
    whole = play(tokenizer, Server(tokenizer, [SEARCH, ANSWER]))
    server = Server(tokenizer, [SEARCH, ANSWER], aborts=[at])
    output = play(tokenizer, server)
    assert output.response_ids == whole.response_ids
    assert output.response_mask == whole.response_mask
    assert log_probs(output) == [-1.0 if i < at else -2.0 for i in range(len(SEARCH + ANSWER))]
    assert server.version == 2 and span(output)[1] == 2
    assert span(output)[0] == 1
    assert output.extra_fields["trajectory"]["failures"] == []


def test_a_trajectory_over_many_updates_has_the_span_of_all_of_them(tokenizer):
    server = Server(tokenizer, [SEARCH, ANSWER], aborts=[5, 5, 20, 45, 50])
    output = play(tokenizer, server)
    assert output.response_ids == play(tokenizer, Server(tokenizer, [SEARCH, ANSWER])).response_ids
    assert span(output) == (1, 6)
    assert len(server.requests) == 2 + 5


@pytest.mark.parametrize("cut", range(1, len("</search>")))
def test_a_closing_tag_cut_in_two_still_ends_the_turn(tokenizer, cut):
    """The resumed request does not know the first half: without help the policy would go on into an
    information block of its own."""
    at = len(SEARCH) - cut
    server = Server(tokenizer, [SEARCH, ANSWER], aborts=[at])
    output = play(tokenizer, server)
    record = output.extra_fields["trajectory"]
    assert [turn["text"] for turn in record["turns"]] == [SEARCH, ANSWER]
    assert "made up" not in tokenizer.decode(output.response_ids)
    assert server.written > len(SEARCH + ANSWER), "the server did write on"


def test_an_update_while_a_search_is_under_way_is_told_by_the_versions_of_the_turns(tokenizer):
    server = Server(tokenizer, [SEARCH, ANSWER])
    Updating.server = server
    output = play(tokenizer, server, cfg=config(retriever={"tool": f"{__name__}:Updating"}))
    assert log_probs(output) == [-1.0] * len(SEARCH) + [-2.0] * len(ANSWER)
    assert span(output) == (1, 2)
    assert server.requests[1] == (output.prompt_ids + output.response_ids)[: len(server.requests[1])]


class Updating(Nothing):
    """A search during which the weights are updated."""

    server: Server

    async def search(self, queries):
        await asyncio.sleep(0)
        self.server.version += 1
        return await super().search(queries)


def test_the_turns_budget_counts_what_was_written_before_the_abort(tokenizer):
    cfg = config(retriever=NOTHING, agent={"max_turns": 1, "final_turn": False, "max_turn_tokens": 20})
    output = play(tokenizer, Server(tokenizer, ["word " * 20], aborts=[7, 12]), cfg=cfg)
    assert len(output.response_ids) == 20
    assert output.extra_fields["trajectory"]["turns"][0]["status"] == "truncated"


def test_under_the_synchronous_client_an_aborted_turn_is_generated_anew(tokenizer):
    server = Server(tokenizer, [SEARCH, ANSWER], aborts=[10])
    output = play(tokenizer, server, LLMServerClient)
    record = output.extra_fields["trajectory"]
    assert (record["status"], record["retries"], record["failures"]) == ("answered", 1, [])
    assert server.requests[0] == server.requests[1]
    assert set(log_probs(output)) == {-2.0}


def test_a_server_that_raises_is_a_failure_of_the_engine_and_not_of_the_run(tokenizer):
    class Dead(Server):
        async def generate(self, *args, **kwargs):
            raise ConnectionError("the engine is gone")

    for client_class in (LLMServerClient, FullyAsyncLLMServerClient):
        output = play(tokenizer, Dead(tokenizer, []), client_class)
        record = output.extra_fields["trajectory"]
        assert (record["status"], record["failures"][0]["kind"]) == ("engine_failure", "engine")
        assert "the engine is gone" in record["failures"][0]["detail"]
        assert output.response_mask == [0] and span(output) == (8, 8)


class Schedule:
    """That of the real run in tests/chaos/test_async_trainers.py: of eight trajectories the first search is
    held open, the weights are updated when a batch of four is finished, and then the search is answered."""

    def __init__(self, seed):
        self.random, self.updated, self.finished, self.held = random.Random(seed), asyncio.Event(), 0, None

    async def search(self, queries):
        if self.held is None:
            self.held = queries[0]
            await self.updated.wait()
        for _ in range(self.random.randrange(20)):
            await asyncio.sleep(0)

    def trajectory_ended(self, server):
        self.finished += 1
        if self.finished == 4:
            server.version += 1
            self.updated.set()


class Scheduled(Nothing):
    """The searches of a Schedule."""

    schedule: Schedule

    async def search(self, queries):
        await self.schedule.search(queries)
        return await super().search(queries)


def search_for(i):
    return f"<think> t </think><search> query {i} </search>"


class Eight(Server):
    """One engine for all: trajectory i asks its own query, then answers."""

    def __init__(self, tokenizer):
        super().__init__(tokenizer, [])

    async def generate(self, request_id, prompt_ids, sampling_params, **unused):
        number = self.tokenizer.decode(prompt_ids).partition("Who is ")[2][0]
        searched = f"query {number}" in self.tokenizer.decode(prompt_ids)
        text = ANSWER if searched else search_for(number)
        return self.output(self.tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.slow
def test_a_search_held_open_over_an_update_always_spans_two_versions(tokenizer):
    cfg = config(retriever={"tool": f"{__name__}:Scheduled"})

    async def play_eight(seed):
        server, schedule = Eight(tokenizer), Schedule(seed)
        Scheduled.schedule = schedule
        balancer = Remote(GlobalRequestLoadBalancer(servers={"one": Remote(server)}))

        async def play_one(i):
            client = FullyAsyncLLMServerClient(cfg, balancer)
            output = await run_loop(cfg, client, tokenizer, f"Who is {i}?", global_steps=1)
            schedule.trajectory_ended(server)
            return output

        return await asyncio.wait_for(asyncio.gather(*map(play_one, range(8))), 30), schedule

    for seed in range(200):
        outputs, schedule = asyncio.run(play_eight(seed))
        held = int(schedule.held.removeprefix("query "))
        expected = [-1.0] * len(search_for(held)) + [-2.0] * len(ANSWER)
        assert log_probs(outputs[held]) == expected, seed
        assert span(outputs[held]) == (1, 2), seed
        for output in outputs:
            assert output.extra_fields["trajectory"]["status"] == "answered", seed
            lowest, highest = span(output)
            assert set(log_probs(output)) == {-float(lowest), -float(highest)}, seed
