"""What a retrieval server finds for each question, over real HTTP; and what is not asked twice."""

from __future__ import annotations

import pytest

from rag_r1.corpus.answer_matcher import AnswerMatcher
from rag_r1.corpus.questions import CorpusQuestion
from rag_r1.corpus.retrieval_check import RetrievalResult, retrieve
from rag_r1.runs.errors import RunError
from rag_r1.tools.retrieval.client import RetrieverConfig
from tests.corpus.row_files import rows_of, written
from tests.fakes.retriever import Retriever

PASSAGES = {"1": "Ulm is a town.", "2": "The Danube is a river.", "3": "Nothing."}


def question(name: str, *golds: str) -> CorpusQuestion:
    return CorpusQuestion("s", name, ((f"What is {name}?", golds),))


def ask(questions, url, store, topk=3):
    table = AnswerMatcher(gold for q in questions for _, golds in q.parts for gold in golds)
    config = RetrieverConfig(url=url, topk=topk, cache_size=0, retries=0)
    return retrieve(questions, table, config, store, progress=False)


@pytest.fixture
def stub():
    with Retriever(PASSAGES) as served:
        yield served


def test_the_rank_is_that_of_the_first_passage_with_any_gold_answer(stub, tmp_path):
    golds = {"a": ("the Danube", "a town"), "b": ("river",), "c": ("sea",), "d": ("?",)}
    questions = [question(name, *answers) for name, answers in golds.items()]
    results = ask(questions, stub.url, tmp_path / "r.jsonl")
    assert [results["s", name].rank for name in "abcd"] == [1, 2, None, None]
    assert results["s", "a"].ids == ("1", "2", "3")
    assert ask(questions, stub.url, tmp_path / "two.jsonl", topk=1)["s", "b"] == RetrievalResult(None, ("1",))
    assert RetrievalResult(1, ("1", "2")).share_of(["2", "9"]) == 0.5


def test_a_question_of_parts_is_asked_part_by_part(stub, tmp_path):
    first = CorpusQuestion("s", "n", (("First?", ("town",)), ("Second?", ("river",))))
    second = CorpusQuestion("s", "m", (("First?", ("town",)), ("Third?", ("sea",))))
    results = ask([first, second], stub.url, tmp_path / "r.jsonl")
    assert results["s", "n"].rank == 2 and results["s", "m"].rank is None
    assert set(stub.queries) == {"First?", "Second?", "Third?"}


def test_what_is_known_is_not_asked_again_and_what_failed_is(stub, tmp_path):
    store = tmp_path / "r.jsonl"
    questions = [question(name, "river") for name in ("a", "b", "c")]
    stub.refuse = "b?"
    assert set(ask(questions[:2], stub.url, store)) == {("s", "a")}
    stub.refuse, stub.queries[:] = None, []
    assert set(ask(questions, stub.url, store)) == {("s", "a"), ("s", "b"), ("s", "c")}
    assert sorted(stub.queries) == ["What is b?", "What is c?"]
    assert len(ask(questions, stub.url, store)) == 3 and len(stub.queries) == 2
    assert not ask([], stub.url, store)


def test_a_file_that_was_cut_off_in_a_line_loses_only_this_line(stub, tmp_path):
    store = tmp_path / "r.jsonl"
    questions = [question(name, "river") for name in "abc"]
    ask(questions, stub.url, store)
    store.write_bytes(store.read_bytes()[:-9])
    stub.queries.clear()
    assert len(ask(questions, stub.url, store)) == 3 and len(stub.queries) == 1
    assert len(rows_of(store)) == 4
    for length in (30, store.read_bytes().index(b"\n")):  # cut off in the first line, which names the server
        store.write_bytes(store.read_bytes()[:length])
        assert len(ask(questions, stub.url, store)) == 3 and len(rows_of(store)) == 4


def test_the_file_of_an_earlier_release_is_read(stub, tmp_path):
    store = tmp_path / "r.jsonl"
    rows = [
        {"endpoint": f"{stub.url}/retrieve", "topk": 3},
        {"source": "s", "id": "a", "of": "b1f88e6e00b2ccf1", "rank": 7, "ids": ["9"]},
    ]
    written(store, rows)
    assert ask([question("a", "river")], stub.url, store) == {("s", "a"): RetrievalResult(7, ("9",))}
    assert not stub.queries and rows_of(store) == rows


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
    with pytest.raises(RunError, match="answered none of the first 1 questions"):
        ask([question("a", "river")], url, tmp_path / "r.jsonl")
    stub.refuse = "What"
    many = [question(str(number), "river") for number in range(500)]
    with pytest.raises(RunError, match="HTTP 422"):
        ask(many, stub.url, tmp_path / "r.jsonl")
    assert stub.refused < 200
