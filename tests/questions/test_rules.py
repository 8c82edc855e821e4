"""The rules refuse a draft for the right reason, and leave a good one alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.questions.drafts import REASONS
from rag_r1.questions.rules import RULES, golds_of, refused_by_rule, unreachable
from rag_r1.rewards import cover_exact_match
from tests.questions.drafted import ANN, ULM, draft, passage


@pytest.mark.parametrize(
    ("question", "answer", "kind"),
    [
        ("Where was Ann Lee born?", "Ulm", "one_hop"),
        ("On what date was Ann Lee born?", "3 May 1903", "number_date"),
        ("Which novelist was born in Ulm and wrote Grey Water?", "Ann Lee", "two_facts"),
        ("On which river does the birthplace of Ann Lee lie?", "Danube", "bridge"),
        ("Which is in Germany, Ann Lee or Ulm?", "Ulm", "comparison"),
        ("Was Ann Lee born in the town of Ulm before it had 126,000 people?", "yes", "yes_no"),
        ("In what were Ann Lee and Ulm named?", "3 May 1903 and Germany", "both"),
        ("Which town lost its gates in 1850?", "Ulm", "one_hop"),
        ("Who left her home in Ulm?", "Ann Lee", "one_hop"),
        ('Which novel is the sequel to the article "In This Text"?', "Grey Water", "one_hop"),
        ("Which band changed its name when it moved?", "Ulm", "one_hop"),
        ("What is the birthplace of the writer who published her novel in 1930?", "Ulm", "one_hop"),
        ("Is it true that Ann Lee was born in Ulm?", "yes", "yes_no"),
        ("Which town is mentioned by Ann Lee in Grey Water?", "Ulm", "one_hop"),
        ("Where was the singer of Grey Water born?", "Ulm", "one_hop"),
        ("Which novel did the paper USA Today praise?", "Grey Water", "one_hop"),
        ('Who wrote "Who Is It? Where?" and did not move?', "Ann Lee", "one_hop"),
        ("Which river lies in Ulm and is the longest?", "Danube", "bridge"),
        ("Which novel did the German writer Ann Lee's hand write?", "Grey Water", "one_hop"),
        ("Who lived in Ulm and what other town?", "Ann Lee", "one_hop"),
    ],
)
def test_a_good_draft_passes(question, answer, kind):
    more = 'Ulm lost its gates in 1850. In 1930 USA Today wrote of "In This Text" and "Who Is It? Where?".'
    assert refused_by_rule(draft(question, answer, kind, ANN, ULM, more)) is None


@pytest.mark.parametrize(
    ("question", "answer", "kind", "reason"),
    [
        ("Tell me where Ann Lee was born.", "Ulm", "one_hop", "wrong_form"),
        ("Was Ann Lee born in Ulm?", "yes", "one_hop", "wrong_form"),
        ("Was Ann Lee born in Ulm?", "Ulm", "yes_no", "wrong_form"),
        ("Where was Ann Lee born?", "Ulm", "number_date", "wrong_form"),
        ("Where were Ann Lee and Ulm found?", "Ulm", "both", "wrong_form"),
        ("Where were Ann Lee and Ulm found?", "Germany and Germany", "both", "wrong_form"),
        ("Where were Ann Lee and Ulm found?", "Grey Water and Paris", "both", "answer_not_in_passages"),
        ("Where were Ann Lee and Ulm found?", "Grey Water and 1903", "both", "answer_not_in_passages"),
        ("Where were Ann Lee and Ulm found in Germany?", "1903 and Germany", "both", "answer_in_question"),
        ("Where was Ann Lee born?", "Paris", "one_hop", "answer_not_in_passages"),
        ("How many people live in Ulm?", "126", "one_hop", "answer_not_in_passages"),
        ("Was Ann Lee born in Ulm or elsewhere?", "Ulm", "one_hop", "answer_in_question"),
        ("According to the passage, where was Ann Lee born?", "Ulm", "one_hop", "dangling_reference"),
        ("Which town is named in the second text?", "Ulm", "one_hop", "dangling_reference"),
        ("Which town is mentioned above?", "Ulm", "one_hop", "dangling_reference"),
        ("What does passage 1 say of the birth of Ann Lee?", "Ulm", "one_hop", "dangling_reference"),
        ("Where was she born?", "Ulm", "one_hop", "dangling_reference"),
        ("In what year was this writer born?", "Ulm", "one_hop", "dangling_reference"),
        ("Which river flows past it?", "Ulm", "one_hop", "dangling_reference"),
        ("In what year was its bridge built?", "Ulm", "one_hop", "dangling_reference"),
        ("Who did he marry?", "Ulm", "one_hop", "dangling_reference"),
        ("Where was the novelist born?", "Ulm", "one_hop", "dangling_reference"),
        (
            "Based on the information provided, where was Ann Lee born?",
            "Ulm",
            "one_hop",
            "dangling_reference",
        ),
        ("Which town is mentioned as the home of Ann Lee?", "Ulm", "one_hop", "dangling_reference"),
        ("Who is the current mayor of Ulm?", "Ann Lee", "one_hop", "dangling_reference"),
        ("Where does Ann Lee currently live?", "Ulm", "one_hop", "dangling_reference"),
        ("Where was Ann Lee born? In what year was Ann Lee born?", "Ulm", "one_hop", "wrong_form"),
        ("Where and when was Ann Lee born?", "Ulm", "one_hop", "wrong_form"),
        ("Where was Ann Lee born, and have you been there?", "Ulm", "one_hop", "wrong_form"),
        ("Where was Ann Lee born, and in what year?", "Ulm", "one_hop", "wrong_form"),
        ("Wo wurde Ann Lee geboren?", "Ulm", "one_hop", "wrong_form"),
        ("Gdzie urodziła się Ann Lee?", "Ulm", "one_hop", "wrong_form"),
        ("Where was Ann Leigh born?", "Ulm", "one_hop", "name_not_in_passages"),
        ("Where was the writer Ann Lee born in 1904?", "Ulm", "one_hop", "name_not_in_passages"),
        ("Where was Ann Lee born (see more.example)?", "Ulm", "one_hop", "name_not_in_passages"),
        ('Where was the author of "Red Water" born?', "Ulm", "one_hop", "name_not_in_passages"),
        ("Judging by the report, where was Ann Lee born?", "Ulm", "one_hop", "dangling_reference"),
        ("Where has Ann Lee lived so far?", "Ulm", "one_hop", "dangling_reference"),
        ("Ann Lee 出生在哪里？", "Ulm", "one_hop", "wrong_form"),
    ],
)
def test_a_faulty_draft_is_refused_for_the_right_reason(question, answer, kind, reason):
    assert refused_by_rule(draft(question, answer, kind)) == reason


def test_a_question_may_end_with_the_mark_of_its_script_if_its_passages_are_in_it():
    assert refused_by_rule(draft("李安出生在哪里？", "乌尔姆", "one_hop", "李安出生在 乌尔姆 。")) is None


def test_nouns_with_capitals_are_not_taken_for_names():
    german = "Anna Lee wurde in der Stadt Ulm geboren, und das ist von der Donau nicht weit."
    assert (
        refused_by_rule(draft("Welche Schriftstellerin wurde in Ulm geboren?", "Anna Lee", "one_hop", german))
        is None
    )


def test_a_yes_no_question_has_the_answer_that_was_wanted():
    made = draft("Was Ann Lee born in Ulm?", "yes", "yes_no")
    wrong = draft("Was Ann Lee born in Ulm?", "no", "yes_no", name=made.id)
    assert (refused_by_rule(made), refused_by_rule(wrong)) == (None, "wrong_form")


def test_the_aliases_of_two_facts_do_not_count():
    """An alias could be one of the two alone."""
    pages = [passage("Ann Lee", ANN), passage("Ulm", ULM)]
    golds = golds_of("both", "1903 and Germany", ["1903", "Germany", "1903 and Ulm"], pages)
    assert golds == ("1903 and Germany", "1903, Germany")


def test_a_bridge_that_names_one_passage_claims_too_much():
    assert refused_by_rule(draft("Where was Ann Lee born?", "Ulm", "bridge", ANN)) == "too_few_passages"


def test_a_name_that_was_to_be_described_must_not_stand_there():
    names = draft("On which river does the birthplace of Ann Lee lie?", "Danube", "bridge", obscure=True)
    hides = draft(
        "Which river flows past where Grey Water's author was born?", "Danube", "bridge", obscure=True
    )
    assert refused_by_rule(names) == "name_not_hidden" and refused_by_rule(hides) is None


def test_every_rule_is_a_reason_of_its_step():
    assert {rule.__name__ for rule in RULES} == set(REASONS["rules"])


def test_of_the_aliases_those_count_that_are_forms_of_the_answer_in_the_passages():
    text = passage("Ann Lee", "Ann Mary Lee, or Lee, was born in Ulm. Bo Ray, the American, was not.")
    assert golds_of("one_hop", "Ann Lee", ["Ann Mary Lee", "Lee", "Bo Ray", "Ann Q. Lee"], [text]) == (
        "Ann Lee",
        "Ann Mary Lee",
        "Lee",
    )
    assert golds_of("one_hop", "3 May 1903", [], [passage("x", ANN)]) == ("3 May 1903", "May 3, 1903")
    assert "United States" in golds_of("one_hop", "American", [], [text])
    assert golds_of("one_hop", "yes", ["no", "maybe"], [text]) == ("yes",)


@given(st.lists(st.text(max_size=30), max_size=6), st.text(min_size=1, max_size=60))
def test_no_alias_counts_that_does_not_stand_in_the_passages(aliases, text):
    """Whatever a teacher names: no alias can make an answer right that the passages do not have."""
    page = passage("Page", text)
    for gold in golds_of("one_hop", "3 May 1903", aliases, [page])[2:]:
        assert cover_exact_match(page.contents, [gold], ordered=True)


def test_passages_are_reachable_by_the_question_and_then_by_what_a_step_tells():
    bridge = draft("On which river does the birthplace of Ann Lee lie?", "Danube", "bridge")
    assert not unreachable(bridge, ["Ann Lee", "x"], [["Ann Lee"], ["x", "Ulm"]])
    assert not unreachable(bridge, ["Ulm", "Ann Lee"], [[], []])
    assert unreachable(bridge, ["Ann Lee"], [["Ann Lee"], ["x"]]), "the second is found by nothing"
    assert unreachable(bridge, ["x"], [["Ann Lee"], ["Ulm"]]), "the question leads to none"
