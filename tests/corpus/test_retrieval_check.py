"""What a retrieval server finds for each question, over real HTTP; and what is not asked twice."""

from __future__ import annotations

import json

import pytest

from rag_r1.corpus.answer_matcher import AnswerMatcher
from rag_r1.corpus.questions import CorpusQuestion
from rag_r1.corpus.retrieval_check import RetrievalResult, RetrieverError, retrieve
from rag_r1.tools.retrieval.client import RetrieverConfig
from tests.fakes.retriever import Retriever

PASSAGES = {"1": "Ulm is a town.", "2": "The Danube is a river.", "3": "Nothing."}


def question(name: str, *golds: str) -> CorpusQuestion:
    return CorpusQuestion("s", name, ((f"What is {name}?", golds),))


def ask(questions, url, store, topk=3):
    table = AnswerMatcher(gold for one in questions for _, golds in one.parts for gold in golds)
    config = RetrieverConfig(url=url, topk=topk, cache_size=0, retries=0)
    return retrieve(questions, table, config, store, progress=False)


@pytest.fixture
def stub():
    with Retriever(PASSAGES) as served:
        yield served


def test_the_rank_is_that_of_the_first_passage_with_any_gold_answer(stub, tmp_path):
    asked = [
        question("a", "the Danube", "a town"),
        question("b", "river"),
        question("c", "sea"),
        question("d", "?"),
    ]
    found = ask(asked, stub.url, tmp_path / "r.jsonl")
    assert [found["s", name].rank for name in "abcd"] == [1, 2, None, None]
    assert found["s", "a"].ids == ("1", "2", "3")
    assert ask(asked, stub.url, tmp_path / "two.jsonl", topk=1)["s", "b"] == RetrievalResult(None, ("1",))
    assert RetrievalResult(1, ("1", "2")).share_of(["2", "9"]) == 0.5


def test_a_question_of_parts_is_asked_part_by_part(stub, tmp_path):
    one = CorpusQuestion("s", "n", (("First?", ("town",)), ("Second?", ("river",))))
    other = CorpusQuestion("s", "m", (("First?", ("town",)), ("Third?", ("sea",))))
    found = ask([one, other], stub.url, tmp_path / "r.jsonl")
    assert found["s", "n"].rank == 2 and found["s", "m"].rank is None
    assert set(stub.queries) == {"First?", "Second?", "Third?"}


def test_what_is_known_is_not_asked_again_and_what_failed_is(stub, tmp_path):
    store = tmp_path / "r.jsonl"
    asked = [question(name, "river") for name in ("a", "b", "c")]
    stub.refuse = "b?"
    assert set(ask(asked[:2], stub.url, store)) == {("s", "a")}
    stub.refuse, stub.queries[:] = None, []
    assert set(ask(asked, stub.url, store)) == {("s", "a"), ("s", "b"), ("s", "c")}
    assert sorted(stub.queries) == ["What is b?", "What is c?"]
    assert len(ask(asked, stub.url, store)) == 3 and len(stub.queries) == 2


def test_a_file_that_was_cut_off_in_a_line_loses_only_this_line(stub, tmp_path):
    store = tmp_path / "r.jsonl"
    asked = [question(name, "river") for name in "abc"]
    ask(asked, stub.url, store)
    store.write_bytes(store.read_bytes()[:-9])
    stub.queries.clear()
    found = ask(asked, stub.url, store)
    assert len(found) == 3 and len(stub.queries) == 1
    lines = store.read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == 4


def test_another_k_or_another_question_of_the_same_id_is_asked(stub, tmp_path):
    store = tmp_path / "r.jsonl"
    ask([question("a", "river")], stub.url, store)
    assert ask([question("a", "town")], stub.url, store)["s", "a"].rank == 1
    assert ask([question("a", "river")], stub.url, store, topk=1)["s", "a"].rank is None
    assert len(stub.queries) == 3


@pytest.mark.slow
def test_a_server_that_answers_nothing_is_an_error_that_comes_soon(stub, tmp_path):
    with Retriever(PASSAGES) as stopped:
        url = stopped.url
    with pytest.raises(RetrieverError, match="answered none of the first 1 questions"):
        ask([question("a", "river")], url, tmp_path / "r.jsonl")
    stub.refuse = "What"
    many = [question(str(number), "river") for number in range(500)]
    with pytest.raises(RetrieverError, match="HTTP 422"):
        ask(many, stub.url, tmp_path / "r.jsonl")
    assert stub.refused < 200
