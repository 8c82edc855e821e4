"""What a reader's answers mean: agreement, other answers, and the verdict of several samples."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.questions.readings import CHECKS, REVIEW, agrees, is_part_of_name, is_right, is_rival, verdict
from rag_r1.questions.spec import RequestLimits, Verification
from tests.questions.drafted import draft

BY_REASON = {check.reason: check for check in CHECKS}


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.integers(1, 7))
def test_a_verdict_that_ends_early_is_that_of_all_samples(votes, needed):
    samples = len(votes)
    whole = sum(votes) >= needed
    decided = [verdict(sum(votes[:asked]), asked, samples, needed) for asked in range(samples + 1)]
    assert decided[-1] is whole, "all samples decide"
    first = next(value for value in decided if value is not None)
    assert first is whole, "and none that are missing could have changed what was decided before"


def test_a_verdict_asks_on_while_the_rest_can_change_it():
    for votes in product((True, False), repeat=2):
        expected = None if sum(votes) == 1 else votes[0]
        assert verdict(sum(votes), 2, 3, 2) is expected


@pytest.mark.parametrize(
    ("answer", "golds", "agree"),
    [
        ("Ulm", ["Ulm"], True),
        ("in the town of Ulm", ["Ulm"], True),
        ("the Danube.", ["Danube"], True),
        ("May 3, 1903", ["3 May 1903", "May 3, 1903"], True),
        ("1903", ["3 May 1903"], False),
        ("It could be Ulm or Trier or Worms, or perhaps Jena", ["Ulm"], False),
        (None, ["Ulm"], False),
        ("Yes.", ["yes"], True),
        ("yes and no", ["yes"], False),
    ],
)
def test_an_answer_agrees_with_a_gold_and_a_few_words_more(answer, golds, agree):
    assert agrees(answer, golds) is agree


@pytest.mark.parametrize(
    ("golds", "answer", "is_part"),
    [
        (["Karlen"], "In Karlen Ford", True),
        (["Lee"], "Émile Lee", True),
        (["Ford"], "in Karlen Ford", True),
        (["Karlen Ford"], "The town Karlen Ford", False),
        (["Karlen"], "In Karlen", False),
        (["Karlen", "Karlen Ford"], "Karlen Ford", False),
        (["1903"], "May 1903", False),
        (["Karlen"], "Karlen Castle", False),
        (["Karlen"], None, False),
    ],
)
def test_a_part_of_a_name_is_told_from_the_name_that_stands_in_the_passages(golds, answer, is_part):
    text = "In Karlen Ford, where Émile Lee was born in May 1903, there is a bridge. In Karlen was another."
    assert is_part_of_name(golds, answer, [text]) is is_part


def test_another_answer_must_stand_in_what_was_shown_and_not_in_the_question():
    asked = draft("Who was born in Ulm in 1903?", "Ann Lee")
    texts = ['"Bo Ray"\nBo Ray was born in Ulm in 1903.']
    assert is_rival(asked, texts, "Bo Ray")
    assert not is_rival(asked, texts, "Cy Fox"), "made up"
    assert not is_rival(asked, texts, "Ulm") and not is_rival(asked, texts, None)
    assert not is_rival(asked, texts, "Lee"), "a shorter form of the answer"


@pytest.mark.parametrize(
    ("answer", "right", "rival"),
    [
        ("1903 and Germany", True, False),
        ("in 1903, in Germany", True, False),
        ("Germany and 1903", False, False),
        ("1903", False, False),
        ("1903 and unknown", False, False),
        ("1903 and Ulm", False, False),
        (None, False, False),
        ("1903 and Austria", False, True),
        ("1999 and Austria", False, True),
        ("1999 and Poland", False, False),
        ("Austria", False, False),
    ],
)
def test_of_two_facts_both_must_be_right_and_one_other_that_stands_there_makes_a_rival(answer, right, rival):
    asked = draft("In which year and land were Ann Lee and Ulm found?", "1903 and Germany", "both")
    assert is_right(asked, answer) is right
    assert is_rival(asked, ["Ann Lee was born in 1999.", "Ulm lies in Austria."], answer) is rival


def test_a_part_of_the_name_of_one_of_two_facts_does_not_count():
    asked = draft("Which books and seas do Ann Lee and Ulm know?", "Water and Germany", "both")
    check = BY_REASON["reader_disagrees"]
    [texts] = check.shows(asked, ())
    assert check.votes(asked, texts, ["Water and Germany", "Grey Water and Germany", "Water"]) == 1


def test_two_different_other_answers_are_two_errors_and_not_a_rival():
    check = BY_REASON["another_answer"]
    asked = draft("Who was born in Ulm in 1903?", "Ann Lee")
    texts = ["Bo Ray and Cy Fox were born in Ulm in 1903."]
    assert check.votes(asked, texts, ["Bo Ray", "Cy Fox", None]) == 1
    assert check.votes(asked, texts, ["Bo Ray", "bo ray.", "Ann Lee"]) == 2
    year = draft("In what year was Ann Lee born?", "1903", "number_date")
    assert check.votes(year, ["Ann Lee was born in 1999."], ["1999", "in 1999", "1903"]) == 2


@pytest.mark.parametrize(
    ("answers", "votes", "reason"),
    [
        (["good", "good"], 0, None),
        (["Several.", "several"], 2, "several_questions"),
        (["changes", "good", "changes"], 2, "answer_changes"),
        (["language", "extra", "extra"], 2, "not_only_a_question"),
        (["unclear", None, "extra"], 1, None),
        (["unclear", "unclear", "so what"], 2, "not_standalone"),
    ],
)
def test_in_a_review_answers_that_name_the_same_fault_refuse_for_it(answers, votes, reason):
    assert REVIEW.votes(draft("Who?", "Ulm"), (), answers) == votes
    assert reason is None or REVIEW.reason_for(answers) == reason


def test_of_three_passages_two_must_not_be_enough_either():
    chain = draft(
        "Which sea does the river of the home of Ann Lee reach?", "Black Sea", "bridge", "a", "b", "c"
    )
    a, b, c = (passage.contents for passage in chain.passages)
    assert BY_REASON["one_passage_is_enough"].shows(chain, []) == [(a, b), (a, c), (b, c)]


def test_a_namesake_takes_the_place_of_the_passage_that_it_is_about():
    asked = draft("Who was born earlier, Ann Lee or Ulm Ray?", "Ann Lee", "comparison")
    _, ray = (passage.contents for passage in asked.passages)
    other = "Ann Lee, a painter, was born in 1999."
    check = BY_REASON["another_answer"]
    assert check.shows(asked, ["x", other]) == [("x", other), (ray, other)]
    assert check.votes(asked, (ray, other), ["Ulm Ray", "Ulm Ray", None]) == 2
    assert check.votes(asked, (ray, other), ["not stated", "not stated"]) == 0, "it names neither"


def test_what_stands_in_the_own_passages_only_is_no_other_answer():
    bridge = draft("On which river does the birthplace of Ann Lee lie?", "Danube", "bridge")
    ann = bridge.passages[0].contents
    check = BY_REASON["another_answer"]
    assert check.votes(bridge, (ann, "Ulm is on a hill."), ["Grey Water", "Grey Water"]) == 0
    assert check.votes(bridge, (ann, "Ulm lies on the Spree."), ["Spree", "Spree"]) == 2


def test_each_check_shows_what_it_is_about():
    bridge = draft("On which river does the birthplace of Ann Lee lie?", "Danube", "bridge")
    single = draft("Where was Ann Lee born?", "Ulm")
    texts = tuple(passage.contents for passage in bridge.passages)
    shows = {reason: check.shows for reason, check in BY_REASON.items()}
    assert shows["reader_disagrees"](bridge, ["x"]) == [texts]
    assert shows["needs_no_search"](bridge, ["x"]) == [()]
    assert shows["one_passage_is_enough"](bridge, ["x"]) == [(text,) for text in texts]
    assert shows["one_passage_is_enough"](single, ["x"]) == []
    assert shows["another_answer"](bridge, ["x", "y"]) == [("x", "y")]
    assert shows["another_answer"](bridge, []) == []


@pytest.mark.parametrize("right", [0, 4])
def test_so_many_right_answers_as_cannot_be_asked_for_are_refused(right):
    with pytest.raises(ValueError, match=f"right={right} must be from 1 to samples=3"):
        Verification(right=right)


@pytest.mark.parametrize("limit", ["in_flight", "rpm", "tpm"])
def test_a_limit_of_nothing_is_refused_and_no_run_hangs(limit):
    with pytest.raises(ValueError, match=f"{limit}=0 must be above 0"):
        RequestLimits(**{limit: 0})
