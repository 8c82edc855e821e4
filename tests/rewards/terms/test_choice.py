"""Questions of multiple choice: which answers name the right option."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import Trajectory
from rag_r1.rewards import RewardSum
from rag_r1.rewards.terms.choice import choice_score

GOLDS = ["急性肺炎", "A", "A. 急性肺炎"]
ENGLISH = ["acute pneumonia", "B", "B. acute pneumonia"]


@pytest.mark.parametrize(
    ("golds", "value", "answers"),
    [
        (
            GOLDS,
            1.0,
            "A| A. |(A)|（Ａ）|A、|答案：A|答案是A。|选A|选项 A|A. 急性肺炎|A急性肺炎|A：急性肺炎|急性肺炎",
        ),
        (ENGLISH, 1.0, "B|The correct answer is B.|Option B|**B**|__B__|Acute Pneumonia|B) acute pneumonia"),
        (ENGLISH, 0.0, "|A|b|A, B acute pneumonia|B or C|A, B|B. chronic pneumonia|Because of B cells"),
        (ENGLISH, 0.0, "BC|acute|AB|not B|B B"),
    ],
    ids=["letter or text", "English words around", "another text", "several letters"],
)
def test_the_right_letter_its_text_or_both_are_right_and_other_answers_wrong(golds, value, answers):
    scores = {answer: choice_score(answer, golds) for answer in answers.split("|")}
    assert scores == dict.fromkeys(scores, value)


def test_no_answer_is_wrong():
    assert choice_score(None, ENGLISH) == 0.0


def test_an_english_article_is_not_the_letter_a():
    assert choice_score("A fever", ["pneumonia", "A", "A. pneumonia"]) == 0.0


def test_without_a_letter_among_the_golds_it_is_exact_match_and_it_is_a_term():
    reward = RewardSum.from_config([{"term": "choice"}])
    for answer, value in (("the Danube", 1.0), ("A", 0.0)):
        record = Trajectory("t", "?", "rag_r1_mq", answer=answer)
        assert reward(record, ["Danube"])["choice"] == value


@given(st.text(max_size=12) | st.text("ABCDab .:()、选", max_size=5))
def test_no_answer_is_two_letters(answer):
    assert sum(choice_score(answer, [letter]) for letter in "ABCDE") <= 1.0


def test_the_text_of_an_option_may_begin_like_a_letter():
    golds = ["B. cereus", "B", "B. B. cereus"]
    assert [choice_score(answer, golds) for answer in ("B. cereus", "B", "B. B. cereus")] == [1.0, 1.0, 1.0]
    assert choice_score("B. anthracis", golds) == 0.0
