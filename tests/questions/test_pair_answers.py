"""Answers that name two facts: the ways to split them, and what the passages make of those."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.questions.pair_answers import facts_in, pair_forms, splits
from rag_r1.rewards import exact_match

NAMES = st.from_regex(r"[A-Z][a-z]{3,7}( [A-Z][a-z]{3,7})?", fullmatch=True)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Ulm and Trier", [("Ulm", "Trier")]),
        ("Ulm, Trier", [("Ulm", "Trier")]),
        ("Ulm, and Trier", [("Ulm", "Trier")]),
        ("Ulm; Trier", [("Ulm", "Trier")]),
        ("Ulm und Trier", [("Ulm", "Trier")]),
        ("乌尔姆和特里尔", [("乌尔姆", "特里尔")]),
        ("Rolls and Royce and Bentley", [("Rolls", "Royce and Bentley"), ("Rolls and Royce", "Bentley")]),
        ("May 3, 1903 and 1905", [("May 3", "1903 and 1905"), ("May 3, 1903", "1905")]),
        ("Ulm and the ulm", []),
        ("Ulm and", []),
        (" and Ulm", []),
        ("Sandringham", []),
        ("", []),
    ],
)
def test_an_answer_is_split_at_each_word_for_and(answer, expected):
    assert splits(answer) == expected


def test_the_passages_decide_where_an_answer_is_split():
    texts = ["Her car was a Rolls and Royce.", "His car was a Bentley."]
    assert facts_in("Rolls and Royce and Bentley", texts) == ("Rolls and Royce", "Bentley")
    assert facts_in("Bentley and Rolls and Royce", texts) == ("Bentley", "Rolls and Royce")
    assert facts_in("Rolls and Porsche", texts) is None
    assert facts_in("Rolls and Royce", texts) is None, "both stand in one passage"
    assert facts_in("Rolls and Royce", texts[:1]) is None


@given(NAMES, NAMES)
def test_two_different_facts_are_found_in_their_passages_and_in_every_form(first, second):
    if first.casefold() == second.casefold():
        return
    answer = f"{first} and {second}"
    texts = [f"Ann went to {first}.", f"Bo went to {second}."]
    assert facts_in(answer, texts) == (first, second)
    forms = pair_forms(answer, texts)
    assert forms[0] == answer
    assert exact_match(f"{first}, {second}", forms) and exact_match(answer.upper(), forms)
    assert not exact_match(first, forms) and not exact_match(f"{second} and {first}", forms)


def test_each_fact_may_have_any_of_its_forms():
    texts = ["Ann was born on 3 May 1903.", "Bo was born on 4 May 1905."]
    forms = pair_forms("3 May 1903 and 4 May 1905", texts)
    assert exact_match("May 3, 1903 and 4 May 1905", forms)
    assert exact_match("May 3, 1903, May 4, 1905", forms)
    assert pair_forms("1903 and 1999", texts) == ("1903 and 1999",)
