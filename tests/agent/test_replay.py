"""An episode goes on from turns that were played before, in the context in which it would have gone on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import CallRecord, Episode, FailurePolicy, ReplayTurn
from rag_r1.agent.failures import FOR_TRAINING
from rag_r1.agent.replay import make_replay
from rag_r1.inference.character_codec import CharacterCodec
from rag_r1.options.tool_limits import ToolLimits
from rag_r1.protocols import Document, Refusal, load_protocol
from rag_r1.tools import tool
from tests.fakes.scripted_engine import ANSWER, FOUND, Characters, Engine, Searcher, make_episode, untimed
from tests.fakes.virtual_time import run

SQ = load_protocol("rag_r1_sq")
MQ = load_protocol("rag_r1_mq")
OTHER = Document("2", '"Paris"\nParis is a city.')
NEVER = FailurePolicy(**{**FOR_TRAINING, "retries": 0})


def search(query: str) -> str:
    return f"<think> t </think> <search> {query} </search>"


def episode(engine, searcher=None, protocol=SQ, **limits) -> Episode:
    return make_episode(protocol, engine, searcher, failures=NEVER, **{"max_turns": 4, **limits})


def past_of(record, count: int) -> list[ReplayTurn]:
    return [ReplayTurn.of(Characters().encode(turn.text), turn.calls) for turn in record.turns[:count]]


class Conversation(Engine):
    """Notes what it is told of the past."""

    def __init__(self, lines):
        super().__init__(lines)
        self.told: list[str] = []

    def restore_turn(self, context, ids):
        self.told.append("".join(map(chr, ids)))


scripts = st.lists(st.sampled_from([search("a"), search("b"), search("c"), "nothing"]), max_size=4)


@given(scripts, st.integers(0, 5))
def test_a_resumed_episode_is_the_one_that_was_not_interrupted(searches, count):
    lines = [*searches, ANSWER]

    async def main():
        whole_engine, searcher = Engine(lines), Searcher()
        whole_episode = episode(whole_engine)
        whole = await whole_episode.run("id", "Who?", [1, 2])
        played = min(count, len(whole.turns) - 1)
        engine = Conversation(lines[played:])
        resumed_episode = episode(engine, searcher)
        resumed = await resumed_episode.resume("id", "Who?", [1, 2], past_of(whole, played))
        assert engine.contexts == whole_engine.contexts[played:], "the policy sees what it saw"
        assert engine.told == [turn.text for turn in whole.turns[:played]]
        assert len(searcher.calls) == sum(bool(turn.calls) for turn in whole.turns[played:])
        assert resumed_episode.ledger.context() == whole_episode.ledger.context()
        assert untimed(resumed) == untimed(whole)

    run(main())


async def test_a_past_search_may_have_found_something_else():
    record = await episode(Engine([search("a"), ANSWER])).run("id", "Who?", [1])
    past = past_of(record, 1)
    (key,) = past[0].results
    engine, searcher = Engine([search("b"), ANSWER]), Searcher()
    other = [ReplayTurn(past[0].token_ids, {key: (OTHER,)})]
    resumed = await episode(engine, searcher).resume("id", "Who?", [1], other)
    assert "Paris is a city." in engine.contexts[0] and "Rome is a city." not in engine.contexts[0]
    assert "Rome is a city." in engine.contexts[1] and searcher.calls == [["b"]]
    assert [turn.documents for turn in resumed.turns[:2]] == [[[OTHER]], [[FOUND]]]


async def test_of_several_searches_in_a_turn_each_finds_what_it_found():
    turn = '<think> t </think> <search> ["a", "b"] </search>'
    record = await episode(Engine([turn, ANSWER]), protocol=MQ).run("id", "Who?", [1])
    assert record.turns[0].queries == ["a", "b"]
    past = past_of(record, 1)[0]
    second = [key for key in past.results if '"b"' in key]
    changed = ReplayTurn(past.token_ids, {**past.results, second[0]: (OTHER,)})
    resumed = await episode(Engine([ANSWER]), protocol=MQ).resume("id", "Who?", [1], [changed])
    assert resumed.turns[0].documents == [[FOUND], [OTHER]]


async def test_of_equal_calls_in_a_turn_each_gets_its_own_result():
    calls = [CallRecord("search", {"query": "a"}, [document]) for document in (OTHER, FOUND)]
    engine, tools = make_replay(Engine([]), {"search": Searcher()}, [ReplayTurn.of([1], calls)])
    await engine.generate([], 9, ())
    assert await tools["search"].call([call.arguments for call in calls], None) == [[OTHER], [FOUND]]


async def test_the_turns_that_are_left_are_those_of_the_whole_episode():
    searches = [search("a"), search("b"), search("c")]
    record = await episode(Engine(searches), max_turns=2).run("id", "Who?", [1])
    assert (record.status, len(record.turns)) == ("turn_limit", 3)
    engine = Engine([search("c")])
    resumed = await episode(engine, max_turns=2).resume("id", "Who?", [1], past_of(record, 2))
    assert (resumed.status, len(engine.contexts)) == ("turn_limit", 1)


async def test_a_past_that_does_not_fit_the_limits_is_a_failure_and_no_answer():
    record = await episode(Engine([search("a"), ANSWER])).run("id", "Who?", [1])
    resumed = await episode(Engine([ANSWER]), max_turn_tokens=5).resume("id", "Who?", [1], past_of(record, 1))
    assert resumed.status == "engine_failure" and resumed.masked(("engine",))
    assert "only 5 are allowed" in resumed.failures[0].detail


@pytest.mark.parametrize("count", [1, 2])
async def test_a_past_turn_that_cannot_be_decoded_is_not_replaced_by_the_next_one(count):
    """The cache is keyed by turn: the next turn's answer in its place would be another episode's history."""
    record = await episode(Engine([search("a"), ANSWER])).run("id", "Who?", [1])
    past = [ReplayTurn((1 << 30,)), *past_of(record, 2)[1:]][:count]
    retrying = make_episode(SQ, Engine([ANSWER]), failures=FailurePolicy(retries=2, wait_s=0.0), max_turns=4)
    retrying.codec = CharacterCodec()  # raises UnknownTokenError
    resumed = await retrying.resume("id", "Who?", [1], past)
    assert (resumed.status, len(resumed.turns)) == ("engine_failure", 1)


@pytest.fixture
def calculating(tmp_path):
    """A protocol with the tool `calc` beside the search."""
    path = tmp_path / "calculating.yaml"
    calc = '{tags: ["<calc>", "</calc>"], role: call, syntax: list, tool: calc}'
    path.write_text(f"extends: rag_r1_mq\nname: calculating\nblocks:\n  calc: {calc}\n")
    return load_protocol(str(path))


async def test_a_refused_call_is_refused_again_with_the_same_words_and_counts(calculating):
    queries = []

    @tool("calc", {"query": {"type": "string"}}, limits=ToolLimits(max_calls=2))
    async def calc(query: str):
        queries.append(query)
        return Refusal("division by zero") if "/0" in query else "4"

    def built(lines) -> Episode:
        item = episode(Engine(lines), protocol=calculating)
        item.tools = {**item.tools, "calc": calc}
        return item

    lines = [
        '<calc> ["1/0", "2+2"] </calc>',
        '<search> ["q"] </search>',
        '<calc> ["3+1", "1+3"] </calc>',
        ANSWER,
    ]
    whole_episode, resumed_episode = built(lines), built(lines[2:])
    whole = await whole_episode.run("id", "Who?", [1])
    assert [call.status for call in whole.turns[0].calls] == ["refused", "ok"]
    assert [call.status for call in whole.turns[2].calls] == ["ok", "refused"]
    queries.clear()
    resumed = await resumed_episode.resume("id", "Who?", [1], past_of(whole, 2))
    assert untimed(resumed) == untimed(whole) and queries == ["3+1"] and not resumed.failures
    assert resumed_episode.ledger.context() == whole_episode.ledger.context()


async def test_a_call_that_the_past_has_not_made_is_a_failure():
    past = [ReplayTurn(tuple(map(ord, search("a"))), {})]
    searcher = Searcher()
    resumed = await episode(Engine([ANSWER]), searcher).resume("id", "Who?", [1], past)
    assert resumed.status == "tool_failure" and resumed.masked(NEVER.mask) and searcher.calls == []
    assert "0 of the earlier episode has no result of search for {'query': 'a'}" in resumed.failures[0].detail


async def test_an_episode_can_be_run_again_after_it_was_resumed():
    record = await episode(Engine([search("a"), ANSWER])).run("id", "Who?", [1])
    item = episode(Engine([ANSWER]))
    await item.resume("id", "Who?", [1], past_of(record, 1))
    again = await item.run("id", "Who?", [1])
    assert [turn.action for turn in again.turns] == ["answer"]


@pytest.mark.parametrize("past", [(), []])
async def test_without_a_past_an_episode_begins_at_its_beginning(past):
    resumed = await episode(Engine([ANSWER])).resume("id", "Who?", [1], past)
    assert [turn.action for turn in resumed.turns] == ["answer"]
