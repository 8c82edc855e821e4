"""Gold answers in texts: found as tokens that follow each other, all of them at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.corpus.answer_matcher import MAX_TOKENS, AnswerMatcher, answer_tokens, weak_reason


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("the Danube", "Ulm is on the Danube."),
        ("Danube", "the river (Danube)/Donau"),
        ("J. K. Rowling", "by J.K. Rowling."),
        ("J.K. Rowling", "by J. K. Rowling"),
        ("U.S.", "the US army"),
        ("12,000", "12000 people"),
        ("1762", "(1762–1827)"),
        ("Jean-Luc", "jean‐luc Picard"),
        ("Café", "a CAFE\u0301."),
        ("中国", "中华人民共和国，中国"),
        ("Straße", "STRASSE 5"),
    ],
)
def test_an_answer_is_found_in_another_spelling(answer, text):
    assert AnswerMatcher([answer]).matches_in(text) == {0}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("Ind", "India"),
        ("New York", "York is new"),
        ("New York", "a new town in York"),
        ("12,000", "12, 000"),
        ("12", "1,2 and 123"),
    ],
)
def test_an_answer_is_not_found_where_its_tokens_do_not_follow_each_other(answer, text):
    assert AnswerMatcher([answer]).matches_in(text) == set()


words = st.sampled_from("new york the danube a ulm 1,000 j. k. of".split())
phrases = st.lists(words, min_size=1, max_size=5).map(" ".join)


@settings(deadline=None, max_examples=100)
@given(st.lists(phrases, max_size=8), st.lists(words, max_size=20).map(" ".join))
def test_all_answers_at_once_are_those_that_are_found_one_by_one(answers, text):
    table = AnswerMatcher(answers)
    tokens = f" {' '.join(answer_tokens(text))} "
    assert table.matches_in(text) == {number for key, number in table.keys.items() if f" {key} " in tokens}


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=20), st.text(max_size=12), st.text(max_size=20))
def test_any_answer_is_found_in_a_text_that_quotes_it(before, answer, after):
    table = AnswerMatcher([answer])
    assert table.matches_in(f"{before}\n| {answer} |\n{after}") >= set(range(len(table.keys)))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("yes", "yes_no"),
        ("No.", "yes_no"),
        ("1762", "number"),
        ("2nd", "number"),
        ("twenty one", "number"),
        ("Ulm", "short"),
        ("中", "short"),
        ("中国", None),
        ("The The", "empty"),
        ("?!", "empty"),
        ("word " * (MAX_TOKENS + 1), "long"),
        ("12 March 1990", None),
        ("the Danube", None),
    ],
)
def test_an_answer_is_weak_for_a_reason(answer, reason):
    assert weak_reason(answer_tokens(answer)) == reason


def test_answers_that_cannot_be_looked_for_are_not_in_the_table():
    table = AnswerMatcher(["?", "word " * 99, "Ulm", "ulm!"])
    assert list(table.keys) == ["ulm"] and table.add("The") is None
