"""Why an answer is wrong, by the rules on its record."""

from __future__ import annotations

import pytest

from rag_r1.agent import CallRecord, Turn
from rag_r1.evaluation.failure_causes import CAUSES, cause_of, gold_positions, verdict
from rag_r1.protocols import Document
from tests.explorer.made_records import GOLD, PASSAGE, answered, failed_search, record, searched

OTHER = '"Tito Vesmer"\nThe doctor Tito Vesmer was born in Zantis Mill in 1911.'


def cause(turns: list[Turn], answer: str | None = "Paris", **fields) -> str | None:
    end = [] if answer is None else [answered(answer)]
    return cause_of(record("q", answer, [*turns, *end], **fields))


@pytest.mark.parametrize(
    ("expected", "turns", "fields"),
    [
        (None, [searched()], {"answer": GOLD}),
        (None, [searched()], {"right": None}),
        (None, [searched()], {"rewards": {"score": None, "em": 0.0}}),
        ("tool_failed", [failed_search()], {}),
        ("tool_failed", [failed_search()], {"answer": None}),
        ("retrieved_and_misread", [failed_search(), searched()], {}),
        ("cut", [searched()], {"answer": None, "status": "token_limit"}),
        ("cut", [searched(), Turn("<think> and so", "invalid", status="truncated")], {"answer": None}),
        ("no_answer", [searched(), searched()], {"answer": None}),
        ("no_answer", [], {"answer": None, "status": "no_action"}),
        ("not_searched", [], {}),
        ("not_searched", [Turn("<calc>", "call", [CallRecord("calculator", {"query": "1"})])], {}),
        ("gold_never_retrieved", [searched("Mara Torval", [OTHER])], {}),
        ("gold_never_retrieved", [searched("Mara Torval", [])], {}),
        ("asked_for_wrong_thing", [searched("Tito Vesmer", [OTHER])], {}),
        ("asked_for_wrong_thing", [searched("Mara", [OTHER]), searched("mara!", [OTHER])], {}),
        ("retrieved_and_misread", [searched("Tito Vesmer", [OTHER, PASSAGE])], {}),
        ("retrieved_and_misread", [searched("Mara", [OTHER]), searched("painters", [PASSAGE])], {}),
        ("not_traceable", [searched()], {"golds": ["yes"]}),
        ("not_traceable", [searched()], {"golds": ["?"]}),
    ],
)
def test_the_first_rule_that_applies_is_the_cause(expected, turns, fields):
    assert cause(turns, **fields) == expected


def test_the_parts_of_an_answer_may_stand_in_different_passages():
    golds = {"golds": ["Karlen Ford and Zantis Mill"], "question": "Where were Mara and Tito born?"}
    assert cause([searched("Mara", [PASSAGE])], **golds) == "gold_never_retrieved"
    assert cause([searched("Mara", [PASSAGE]), searched("Tito", [OTHER])], **golds) == "retrieved_and_misread"


def test_a_part_of_an_answer_that_is_not_split_marks_no_passage():
    one = record("q", "x", [searched("series", ["The prime minister of Peru."])], golds=["Yes, Minister"])
    assert gold_positions(one) == [] and cause_of(one) != "retrieved_and_misread"


@pytest.mark.parametrize(
    ("gold", "text", "stands"),
    [
        ("1,000", "about 1000 people", True),
        ("U.S.S.R.", "in the USSR of then", True),
        ("the Beatles", "a song by BEATLES.", True),
        ("Ford", "in Fordham", False),
        ("Karlen Ford", "Karlen, Ford", True),
        ("Karlen Ford", "Ford Karlen", False),
        ("Köln", "nach KÖLN", True),
        ("café", "the cafe\u0301", True),
        ("北京", "在北京市", True),
    ],
)
def test_a_gold_stands_in_a_passage_word_for_word(gold, text, stands):
    one = record("q", "x", [searched("born", [OTHER, text])], golds=[gold])
    assert gold_positions(one) == ([(0, 0, 1)] if stands else [])


def test_gold_passages_that_the_record_names_decide_where_they_are_known():
    metadata = {"metadata": {"supporting_titles": ["Mara Torval", "Tito Vesmer"]}, "golds": ["yes"]}
    both = [searched("Mara", [PASSAGE]), searched("Tito", [OTHER])]
    assert cause(both, **metadata) == "retrieved_and_misread"
    assert cause(both[:1], **metadata) == "gold_never_retrieved"
    assert gold_positions(record("q", "x", both, **metadata)) == [(0, 0, 0), (1, 0, 0)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"right": True}, True),
        ({"right": False}, False),
        ({"right": None}, None),
        ({"right": "yes"}, None),
        ({"rewards": {"em": 1.0}}, True),
        ({"rewards": {"em": 0.0, "score": 0.3}}, False),
        ({"rewards": {"score": None}}, None),
        ({"rewards": {}, "status": "engine_failure"}, None),
        ({"rewards": {"f1": 0.5}}, True),
        ({"rewards": {"f1": 0.5}, "golds": ["Zantis Mill"]}, False),
        ({"rewards": {}, "golds": []}, None),
    ],
    ids=str,
)
def test_the_verdict_is_the_records_own_or_by_exact_match(fields, expected):
    assert verdict(record("q", GOLD, **fields)) is expected


def test_every_cause_has_a_sentence():
    assert all(sentence[0].isupper() and sentence.endswith(".") for sentence in CAUSES.values())


def test_documents_of_other_tools_are_no_retrieved_passages():
    page = CallRecord("page", {"url": "https://x"}, [Document("1", "no gold here")])
    assert cause([Turn("<page>", "call", [page])]) == "not_searched"
