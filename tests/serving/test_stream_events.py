"""What a client sees of an episode."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import Budget, Episode, Event, Trajectory, Turn
from rag_r1.protocols import Document, load_protocol
from rag_r1.serving.citations import citations
from rag_r1.serving.reasoning import StreamingReasoning, turn_reasoning
from rag_r1.serving.stream_events import EventStreamer
from rag_r1.serving.wire import episode_searches
from rag_r1.tools import search_tools
from tests.fakes.scripted_engine import Characters, Engine, Searcher

MQ = load_protocol("rag_r1_mq")
ROME = Document("1", '"Rome"\nRome is the capital of Italy.', 0.5)
OTHER = Document("2", '"Tiber"\nThe Tiber is a river.', 0.25)


@pytest.mark.parametrize(
    ("text", "reasoning"),
    [
        ("<think> first this </think> <search> q </search>", "first this"),
        ("<think> a </think> so <answer> Rome </answer>", "a </think> so".replace(" </think>", " ")),
        ("<answer> Rome </answer>", ""),
        ("<search> q </search>", ""),
        ("no action at all", "no action at all"),
        ("<think> cut off", "cut off"),
        ("<think> I could <search> here </think> <search> q </search>", "I could  here"),
    ],
)
def test_reasoning_is_what_stands_beside_calls_and_answers(text: str, reasoning: str):
    assert turn_reasoning(text, MQ).split() == reasoning.split()


TURNS = (
    "<think> first this, then that </think> <search> q </search>",
    "<think> 1 < 2 and <b> </think> so <answer> Rome </answer>",
    "no action at all",
)


@pytest.mark.parametrize("text", TURNS)
def test_reasoning_that_grows_shows_no_tag_and_takes_nothing_back(text: str):
    events = []
    streamer = EventStreamer(MQ, events.append)
    grown = streamer.generation_started()
    for character in text:
        grown(character)
    streamer(Event("id", "tokens", 0, {"text": text}))
    assert "".join(event.text for event in events) == turn_reasoning(text, MQ)
    assert [event.starts_turn for event in events] == [True] + [False] * (len(events) - 1)
    assert len(events) > 5


def test_a_turn_that_the_engine_starts_again_is_not_shown_twice():
    events = []
    streamer = EventStreamer(MQ, events.append)
    for pieces in (["<think> I", " need"], ["<think> I"], ["<think>", " I ne", "ed to"], ["<think> no", "w"]):
        grown = streamer.generation_started()
        for piece in pieces:
            grown(piece)
    assert "".join(event.text for event in events) == "I need to"
    streamer(Event("id", "turn", 1, {"room": 1}))
    streamer.generation_started()("<think> no")
    assert events[-1].text == "no" and events[-1].starts_turn


def test_a_call_is_no_reasoning_before_it_is_complete():
    growing = StreamingReasoning(MQ)
    assert growing.feed("<think> a </think> <search> q") == "a"
    assert growing.ended and growing.feed(" </search> more") == ""


@given(
    st.lists(
        st.sampled_from(["<", "<think>", "</think>", "<search>", "<sea", "rch>", "k>", " ", "\n", "a", "b c"])
    )
)
def test_reasoning_in_pieces_is_the_reasoning_of_the_whole_up_to_an_action(pieces):
    growing, text = StreamingReasoning(MQ), "".join(pieces)
    reasoning = "".join(map(growing.feed, pieces)) + growing.feed("$")
    visible = f"{text}$".partition("<search>")[0]
    assert reasoning == visible.replace("<think>", "").replace("</think>", "").strip()


def test_reasoning_of_a_turn_of_any_length_is_looked_at_once(monkeypatch):
    """Each piece costs the same, however much came before it."""
    looked_at = []

    class Pattern:
        def finditer(self, text):
            looked_at.append(len(text))
            return iter(())

    grown, reasoning = StreamingReasoning(MQ), []
    grown._tag = Pattern()
    reasoning.extend(grown.feed("some words " * 10) for _ in range(2000))
    assert max(looked_at) < 200 and len("".join(reasoning)) > 200_000


def test_a_thought_that_is_a_turn_of_its_own_is_reasoning():
    protocol = load_protocol("agentic_rag_en")
    opened, closed = protocol.tags.think.open, protocol.tags.think.close
    assert turn_reasoning(f"{opened} a thought {closed}", protocol) == "a thought"


def record_of(answer: str | None, *documents: Document) -> Trajectory:
    turns = [Turn.searched("", ["a", "b"], [[], list(documents)]), Turn("", "answer")]
    return Trajectory("id", "q", MQ.name, turns, answer=answer, status="answered")


def test_passages_that_contain_the_answer_are_cited_with_their_place():
    cited = citations(record_of("the capital of Italy", OTHER, ROME))
    assert cited["passages"] == [{"turn": 0, "call": 1, "rank": 2, "id": "1", "title": "Rome"}]


@pytest.mark.parametrize("answer", [None, "", "yes", "No.", "answer no"])
def test_no_passage_is_cited_for_another_order_or_for_words_that_any_text_contains(answer: str | None):
    document = Document("3", "No, yes: there is no answer.")
    assert citations(record_of(answer, document))["passages"] == []
    assert citations(record_of("–!", document))["grounded"] is None, "it has no word"


def test_an_episode_shows_its_reasoning_searches_and_passages_in_order():
    events = []
    engine = Engine(["<think> t </think> <search> q </search>", "<answer> Rome </answer>"])
    streamer = EventStreamer(MQ, events.append)
    budget = Budget(max_response_tokens=5000)
    episode = Episode(MQ, budget, engine, search_tools(Searcher()), Characters(), observer=streamer)
    record = asyncio.run(episode.run("id", "Which city?", [65, 66]))
    assert [event.kind for event in events] == ["reasoning", "searching", "passages"]
    assert events[0].text == "t"
    assert events[1].data == {"turn": 0, "calls": [{"tool": "search", "arguments": {"query": "q"}}]}
    [call] = events[2].data["calls"]
    assert call["documents"] == [{"id": "1", "title": "Rome", "text": "Rome is a city.", "score": 0.5}]
    assert episode_searches(record)[0] | {"seconds": 0} == {"turn": 0, **call, "seconds": 0}
