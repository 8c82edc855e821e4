"""SFT traces: what each strategy writes, and that it is written in the protocol's own terms."""

from __future__ import annotations

import random
from functools import cache

import pytest

from rag_r1.demo import world
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.traces import mixes, turns, writer
from rag_r1.protocols import Answer, Search

SMALL = world.make_world(0, "train", people=20, places=10, words=12)
SEARCH = WorldSearch(SMALL.passages).results
QUESTIONS = world.make_questions(SMALL, 40, 0)
PROTOCOLS = ("rag_r1_sq", "rag_r1_mq")
STRATEGIES = ("guess", "early", "sequential", "parallel")


@cache
def cases():
    """(protocol, strategy, question, trace) of all questions."""
    write = writer.write_trace
    return [
        (protocol, strategy, question, write(question, strategy, SMALL, protocol, SEARCH, random.Random(0)))
        for protocol in map(world.demo_protocol, PROTOCOLS)
        for strategy in STRATEGIES[: 3 if protocol.name == "rag_r1_sq" else 4]
        for question in QUESTIONS
    ]


@pytest.mark.slow
def test_every_turn_parses_and_ends_at_its_closing_tag():
    for protocol, _, _, trace in cases():
        turns = [segment for segment in trace if segment.generated]
        actions = [protocol.parse(turn.text) for turn in turns]
        assert all(isinstance(action, Search) for action in actions[:-1]) and isinstance(actions[-1], Answer)
        assert all(turn.text.endswith(protocol.stop) for turn in turns)


@pytest.mark.slow
def test_observations_are_what_the_protocol_renders_for_the_queries_of_the_turn_before():
    for protocol, _, _, trace in cases():
        for turn, observation in zip(trace[:-1:2], trace[1::2], strict=True):
            queries = protocol.parse(turn.text).queries
            assert not observation.generated
            assert observation.text == protocol.observation(queries, SEARCH(queries))


@pytest.mark.slow
def test_strategies_that_find_every_fact_answer_with_the_gold_and_search_as_often_as_they_say():
    for protocol, strategy, question, trace in cases():
        searches = len(trace) // 2
        if strategy in ("sequential", "parallel"):
            assert protocol.parse(trace[-1].text).text == question.gold
        parallel = strategy == "parallel" and question.kind in world.INDEPENDENT
        needed = 1 if parallel else len(question.lookups)
        assert searches == {"guess": 0, "early": 1}.get(strategy, needed)


@pytest.mark.slow
def test_stopping_early_misses_the_answer_of_a_bridge():
    early = [case for case in cases() if case[1] == "early" and case[2].kind == "bridge"]
    assert early
    for protocol, _, question, trace in early:
        assert protocol.parse(trace[-1].text).text == question.lookups[0].value


def test_an_unknown_strategy_and_a_conclusion_from_nothing_are_refused():
    protocol = world.demo_protocol("rag_r1_sq")
    with pytest.raises(ValueError, match="sequentail"):
        writer.write_trace(QUESTIONS[0], "sequentail", SMALL, protocol, SEARCH, random.Random(0))
    with pytest.raises(ValueError):
        turns.conclude(QUESTIONS[0], [], random.Random(0), turns.value_text)


def test_a_trace_stands_for_the_four_kinds_of_samples():
    contexts, targets = ("question", "question + information"), ("answer", "search")
    names = {kind for *_, trace in cases() for kind in writer.sample_kinds(trace)}
    assert names == {f"{context} -> {target}" for context in contexts for target in targets}


def test_a_drill_states_both_years_and_answers_with_the_earlier_person():
    rng = random.Random(0)
    protocol = world.demo_protocol("rag_r1_sq")
    for _ in range(50):
        question, (turn,) = writer.write_drill(SMALL, rng)
        earlier = min(question.lookups, key=lambda lookup: int(lookup.value))
        assert all(f"{lookup.entity} {lookup.value}" in question.text for lookup in question.lookups)
        assert protocol.parse(turn.text).text == earlier.entity


@pytest.mark.parametrize("mixes", [mixes.GOLD, mixes.MIXED])
def test_shares_add_up_and_single_query_never_searches_in_parallel(mixes):
    for name in PROTOCOLS:
        assert set(mixes[name]) == set(world.KINDS)
        for shares in mixes[name].values():
            assert sum(shares.values()) == pytest.approx(1.0) and set(shares) <= set(STRATEGIES)
            assert name == "rag_r1_mq" or "parallel" not in shares
