"""The teacher of the demo world: its rules, and the endpoint that it stands behind."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.demo.pipeline.pretraining_data import pipeline_protocol
from rag_r1.demo.pipeline.teacher import UNKNOWN, RuleTeacher, TeacherServer, completion
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.world import INDEPENDENT, KINDS, make_questions, make_world
from rag_r1.protocols import Answer, Protocol, Search
from rag_r1.rewards import exact_match

WORLD = make_world(0, "train", people=40, places=20)
QUESTIONS = make_questions(WORLD, 80, 0)
SEARCH = WorldSearch(WORLD.passages, 2)


def conversation(teacher: RuleTeacher, protocol: Protocol, question, search=SEARCH.results):
    """The actions of the teacher in an episode, told as a conversation."""
    messages, actions = protocol.messages(question.text), []
    while not actions or not isinstance(actions[-1], Answer):
        turn = teacher.turn(messages)
        actions.append(protocol.parse(turn))
        messages.append({"role": "assistant", "content": turn})
        if isinstance(actions[-1], Search):
            queries = actions[-1].queries
            messages.append({"role": "user", "content": protocol.observation(queries, search(queries))})
        assert len(messages) < 10
    return actions


@pytest.mark.parametrize("name", ["rag_r1_sq", "rag_r1_mq"])
def test_it_searches_for_every_fact_and_is_wrong_where_it_says_so(name):
    protocol, teacher = pipeline_protocol(name), RuleTeacher(QUESTIONS, wrong=0.4)
    for question in QUESTIONS:
        *searches, answer = conversation(teacher, protocol, question)
        assert [query for search in searches for query in search.queries] == [
            fact.entity for fact in question.lookups
        ]
        assert exact_match(answer.text, [question.gold]) == teacher.is_right(question)
    assert {teacher.is_right(question) for question in QUESTIONS} == {True, False}
    assert {question.kind for question in QUESTIONS} == set(KINDS)


@given(st.floats(0, 1), st.integers(0, 9))
def test_the_share_of_wrong_answers_is_the_one_that_was_asked_for(wrong, seed):
    teacher = RuleTeacher(QUESTIONS, wrong=wrong, seed=seed)
    share = sum(not teacher.is_right(question) for question in QUESTIONS) / len(QUESTIONS)
    assert abs(share - wrong) < 0.25  # 80 questions: more than four standard deviations
    assert share in (0, 1) or wrong not in (0, 1)


def test_it_asks_for_independent_facts_together_in_the_share_that_was_asked_for():
    protocol = pipeline_protocol("rag_r1_mq")
    for parallel in (0.0, 0.5, 1.0):
        teacher = RuleTeacher(QUESTIONS, parallel=parallel)
        together = {
            question.id: len(conversation(teacher, protocol, question)[0].queries) == 2
            for question in QUESTIONS
        }
        independent = {question.id for question in QUESTIONS if question.kind in INDEPENDENT}
        together_ids = {key for key, both in together.items() if both}
        assert together_ids <= independent
        assert parallel == 0.5 or together_ids == (independent if parallel else set())
        assert parallel != 0.5 or together_ids and together_ids != independent


def test_it_does_not_know_what_the_search_has_not_found():
    protocol, teacher = pipeline_protocol("rag_r1_mq"), RuleTeacher(QUESTIONS, wrong=0.0)
    *_, answer = conversation(teacher, protocol, QUESTIONS[0], lambda queries: [[] for _ in queries])
    assert answer.text == UNKNOWN


@pytest.mark.parametrize("stop", [["</search>", "</answer>"], "</search>", None, []])
def test_an_endpoint_ends_at_the_first_stop_string_and_leaves_it_out(stop):
    body = {"messages": [{"role": "user", "content": "a b"}], "stop": stop, "model": "m"}
    answer = completion("<search> x </search>\n<answer> y </answer>", body)
    text = answer["choices"][0]["message"]["content"]
    assert text == ("<search> x " if stop else "<search> x </search>\n<answer> y </answer>")
    assert answer["usage"]["prompt_tokens"] == 2 and answer["model"] == "m"


def test_the_server_answers_a_conversation_and_refuses_what_is_none():
    protocol, teacher = pipeline_protocol("rag_r1_mq"), RuleTeacher(QUESTIONS)
    messages = protocol.messages(QUESTIONS[0].text)
    with TeacherServer(teacher) as server, httpx.Client(base_url=server.url) as client:
        answer = client.post("/v1/chat/completions", json={"messages": messages, "stop": ["</search>"]})
        assert answer.status_code == 200
        content = answer.json()["choices"][0]["message"]["content"]
        assert content + "</search>" == teacher.turn(messages)
        other = [{"role": "user", "content": "Question: Who are you?"}]
        for body in (b"{", b"[]", b"{}", b'{"messages": 3}', b'{"messages": []}', b"[" * 99_999):
            assert client.post("/v1/chat/completions", content=body).status_code == 400
        refused = client.post("/v1/chat/completions", json={"messages": other})
        assert refused.status_code == 400 and "Who are you?" in refused.json()["error"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/v1/models")
