"""Failures of the engine and of the searcher: typed, tried again in place, recorded once, shown or ending."""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import Budget, Episode, FailurePolicy, FailureRecord, Generation
from rag_r1.protocols import Document, Failure, load_protocol
from rag_r1.tools import search_tools
from tests.fakes.scripted_engine import Characters

PROTOCOL = load_protocol("rag_r1_mq")
SEARCH, ANSWER = "<search> a, b </search>", "<answer> Rome </answer>"
AWAY = Failure("away", "retriever", "HTTP 503")
MASKING = FailurePolicy(retries=1, wait_s=0.0, mask=("retriever", "engine", "tool"))


class Engine:
    """Plays `lines` by turn; before that, in each call, the next of `faults` (None: none)."""

    def __init__(self, lines, faults=()):
        self.lines, self.faults, self.contexts, self.turn = lines, list(faults), [], 0

    async def generate(self, context, max_tokens, stop):
        self.contexts.append(list(context))
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, Exception):
            raise fault
        if fault is not None:
            return Generation([ord(c) for c in fault], [-9.0] * len(fault), aborted=True, detail="aborted")
        line, self.turn = self.lines[min(self.turn, len(self.lines) - 1)], self.turn + 1
        return Generation([ord(c) for c in line], [-1.0] * len(line))


class Searcher:
    """Answers with its name; fails a query as often as `fails` says."""

    def __init__(self, fails=None, failure=AWAY):
        self.fails, self.failure, self.calls = dict(fails or {}), failure, []

    async def search(self, queries):
        self.calls.append(list(queries))
        results = []
        for query in queries:
            left = self.fails.get(query, 0)
            self.fails[query] = left - 1
            results.append(self.failure if left > 0 else [Document(query, f"about {query}")])
        return results


def play(engine, searcher, policy=MASKING, **budget):
    episode = Episode(PROTOCOL, Budget(**budget), engine, search_tools(searcher), Characters(), policy)
    record = asyncio.run(asyncio.wait_for(episode.run("id", "Q?", [1]), 20))
    return record, episode.ledger.row()


def test_only_the_query_that_failed_is_asked_again_and_the_row_is_as_if_nothing_had_happened():
    searcher = Searcher({"b": 1})
    record, row = play(Engine([SEARCH, ANSWER]), searcher)
    assert searcher.calls == [["a", "b"], ["b"]]
    assert (record.status, record.retries, record.failures) == ("answered", 1, [])
    assert row == play(Engine([SEARCH, ANSWER]), Searcher())[1]


def test_a_failed_generation_is_made_again_from_the_same_context_and_leaves_no_trace_in_the_row():
    for fault in ("<sea", ConnectionError("the engine is gone")):
        engine = Engine([SEARCH, ANSWER], [None, fault])
        record, row = play(engine, Searcher())
        assert engine.contexts[1] == engine.contexts[2]
        assert (record.status, record.retries, record.failures) == ("answered", 1, [])
        assert row == play(Engine([SEARCH, ANSWER]), Searcher())[1]


def test_a_search_that_stays_failed_ends_a_trajectory_that_would_be_masked():
    searcher = Searcher({"b": 9})
    record, row = play(Engine([SEARCH, ANSWER]), searcher)
    assert (record.status, record.answer, len(record.turns)) == ("tool_failure", None, 1)
    assert record.failures == [FailureRecord("retriever", 0, "HTTP 503")]
    assert len(searcher.calls) == 2 and len(row.response_ids) == len(SEARCH)


def test_a_failure_that_is_not_masked_is_shown_and_the_episode_goes_on():
    record, row = play(Engine([SEARCH, ANSWER]), Searcher({"b": 9}), FailurePolicy(mask=("engine",)))
    assert (record.status, record.answer) == ("answered", "Rome")
    assert record.failures == [FailureRecord("retriever", 0, "HTTP 503")]
    assert "away" in Characters().decode(row.response_ids)


def test_each_failed_turn_is_recorded_once_with_its_number():
    always = Searcher({"a": 9, "b": 9})
    record, _ = play(Engine([SEARCH, SEARCH, ANSWER]), always, FailurePolicy())
    assert [(note.kind, note.turn) for note in record.failures] == [("retriever", 0), ("retriever", 1)]
    assert record.masked(("retriever",)) and not record.masked(("tool", "engine"))


def test_an_engine_that_stays_away_is_an_engine_failure_with_its_reason():
    record, row = play(Engine([SEARCH], [None, OSError("gone"), OSError("gone")]), Searcher())
    assert record.status == "engine_failure"
    assert record.failures == [FailureRecord("engine", 1, "OSError: gone")]
    assert record.turns[-1].text == "" and row.response_mask[-1] == 0


def test_an_unknown_kind_of_a_foreign_tool_is_a_tools_failure():
    record, _ = play(Engine([SEARCH]), Searcher({"a": 9, "b": 9}, Failure("away", "surprise")))
    assert [note.kind for note in record.failures] == ["tool"]


def test_a_tool_that_hangs_is_a_failed_search_and_does_not_hang_the_episode():
    class Hanging(Searcher):
        async def search(self, queries):
            self.calls.append(list(queries))
            await asyncio.Event().wait()

    policy = FailurePolicy(retries=1, wait_s=0.0, tool_timeout_s=0.01, mask=("tool",))
    searcher = Hanging()
    record, _ = play(Engine([SEARCH, ANSWER]), searcher, policy)
    assert (record.status, len(searcher.calls)) == ("tool_failure", 2)
    assert record.failures == [FailureRecord("tool", 0, "no answer within 0.01 s")]


def test_no_answer_within_the_budget_is_recorded_as_such_and_is_nobody_elses_failure():
    for limits, status in (({"max_turns": 1}, "turn_limit"), ({"max_response_tokens": 40}, "token_limit")):
        record, _ = play(Engine([SEARCH]), Searcher(), **limits)
        assert record.status == status
        assert [(note.kind, note.detail) for note in record.failures] == [("budget", status)]


def test_a_trajectory_suspended_in_a_search_goes_on_where_it_was():
    """The engine changes its weights (here: its log-probs) while the search is under way."""

    async def main():
        searching, answered = asyncio.Event(), asyncio.Event()
        version = 1

        class Slow(Searcher):
            async def search(self, queries):
                searching.set()
                await answered.wait()
                return await super().search(queries)

        class Versioned(Engine):
            async def generate(self, context, max_tokens, stop):
                out = await super().generate(context, max_tokens, stop)
                return Generation(out.token_ids, [-float(version)] * len(out.token_ids))

        engine = Versioned([SEARCH, ANSWER])
        episode = Episode(PROTOCOL, Budget(), engine, search_tools(Slow()), Characters(), MASKING)
        task = asyncio.create_task(episode.run("id", "Q?", [1]))
        await asyncio.wait_for(searching.wait(), 5)
        version = 2
        answered.set()
        record = await asyncio.wait_for(task, 5)
        row = episode.ledger.row()
        assert (record.status, len(engine.contexts)) == ("answered", 2)
        assert row.response_logprobs[: len(SEARCH)] == [-1.0] * len(SEARCH)
        assert row.response_logprobs[-len(ANSWER) :] == [-2.0] * len(ANSWER)
        return row

    row = asyncio.run(main())
    assert row.response_ids == play(Engine([SEARCH, ANSWER]), Searcher())[1].response_ids


@given(st.integers(0, 2**32), st.integers(0, 3))
def test_whatever_fails_the_episode_ends_and_what_is_not_failed_is_as_undisturbed(seed, retries):
    random = Random(seed)
    lines = random.choices([SEARCH, "<search> c </search>", "hm", ANSWER], weights=[4, 3, 2, 2], k=5)
    faults = [random.choice([None, None, None, "<sea", OSError("gone")]) for _ in range(8)]
    fails = {query: random.randrange(3) for query in "abc"}
    policy = FailurePolicy(retries=retries, wait_s=0.0, mask=("retriever", "engine", "tool"))
    record, row = play(Engine(lines, faults), Searcher(fails), policy)
    undisturbed, whole = play(Engine(lines), Searcher(), policy)
    assert len(row.response_ids) == len(row.response_mask) == len(row.response_logprobs)
    if record.masked(policy.mask):
        assert record.status in ("engine_failure", "tool_failure") and record.answer is None
    else:
        assert row == whole and record.status == undisturbed.status
        assert record.failures == undisturbed.failures
