"""The metrics against values worked out by hand, and against a second statement of the published formulas."""

from __future__ import annotations

import collections
import math
import re
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.rewards import as_golds, cover_exact_match, exact_match, normalise, token_f1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The U.S.A.!", "usa"),
        ("  an\tApple \n a day ", "apple day"),
        ("Theodore", "theodore"),  # an article only as a whole word
        ("Jean-Luc", "jeanluc"),
        ("The The", ""),
        ("Beyoncé Knowles", "beyoncé knowles"),
        ("1,000", "1000"),
    ],
)
def test_normaliser_is_squads(text, expected):
    assert normalise(text) == expected


# prediction, golds, EM, F1, cover-EM, cover-EM side by side
TABLE = [
    ("Paris", ["Paris"], 1, 1, 1, 1),
    ("the Paris.", ["paris"], 1, 1, 1, 1),
    ("Paris, France", ["Paris"], 0, 2 / 3, 1, 1),
    ("Paris", ["Paris, France"], 0, 2 / 3, 0, 0),
    ("the city of Paris in France", ["Paris France"], 0, 4 / 7, 1, 0),  # 5 tokens and 2, 2 in common: 4 / 7
    ("Lyon", ["Paris", "Lyon"], 1, 1, 1, 1),
    ("Marseille", ["Paris", "Lyon"], 0, 0, 0, 0),
    ("India", ["Ind"], 0, 0, 0, 0),
    ("New New York", ["New York"], 0, 4 / 5, 1, 1),  # a repeated token counts as often as the gold has it
    ("yes", ["yes"], 1, 1, 1, 1),
    ("yes or no", ["yes"], 0, 0, 1, 1),  # HotpotQA: yes / no as a whole
    ("no", ["no way"], 0, 0, 0, 0),
    ("", ["Paris"], 0, 0, 0, 0),
    (None, ["Paris"], 0, 0, 0, 0),
    ("the", ["Paris"], 0, 0, 0, 0),
    ("Paris", [""], 0, 0, 0, 0),
    ("Paris", [], 0, 0, 0, 0),
    ("", [""], 0, 0, 0, 0),
    ("...", ["The"], 0, 0, 0, 0),  # both normalise to nothing, and are not the same for that
    ("a", ["The"], 0, 0, 0, 0),
    ("the", ["The"], 1, 1, 1, 1),
    ("The  The", ["the the"], 1, 1, 1, 1),
    ("Paris", ["The"], 0, 0, 0, 0),
]


@pytest.mark.parametrize(("prediction", "golds", "em", "f1", "cover", "side_by_side"), TABLE)
def test_metrics_against_the_table(prediction, golds, em, f1, cover, side_by_side):
    assert exact_match(prediction, golds) == em
    assert token_f1(prediction, golds) == pytest.approx(f1)
    assert cover_exact_match(prediction, golds) == cover
    assert cover_exact_match(prediction, golds, ordered=True) == side_by_side


# prediction, gold; EM, F1, cover-EM with R1-Searcher's normaliser; EM with the default one
OTHER_NORMALISER = [
    ("Jean Luc Godard", "Jean-Luc Godard", 1, 1, 1, 0),
    ("JeanLuc Godard", "Jean-Luc Godard", 0, 2 / 5, 0, 1),
    ("1000", "1,000", 0, 0, 0, 1),
    ("1 000", "1,000", 1, 1, 1, 0),
    ("under score", "under_score", 1, 1, 1, 0),
    ("O Neill", "O’Neill", 1, 1, 1, 0),
    ("Heroes", "‘Heroes´`", 1, 1, 1, 0),
    ("True", "yes", 1, 1, 1, 0),
    ("no", "False", 1, 1, 1, 0),
    ("true", "yes", 0, 0, 0, 0),  # only as Python writes it
    ("“Heroes”", "Heroes", 0, 0, 0, 0),  # these quotes are left alone by both
    ("the Donau", "Donau", 1, 1, 1, 1),
    ("?", "?", 1, 1, 1, 1),
]


@pytest.mark.parametrize(("prediction", "gold", "em", "f1", "cover", "squad_em"), OTHER_NORMALISER)
def test_r1_searchers_normaliser_against_the_table(prediction, gold, em, f1, cover, squad_em):
    option = {"normaliser": "r1_searcher"}
    assert exact_match(prediction, gold, **option) == em
    assert token_f1(prediction, gold, **option) == pytest.approx(f1)
    assert cover_exact_match(prediction, gold, **option) == cover
    assert exact_match(prediction, gold) == exact_match(prediction, gold, normaliser="squad") == squad_em


@pytest.mark.parametrize("metric", [exact_match, token_f1, cover_exact_match])
def test_an_unknown_normaliser_is_answered_with_the_known_ones(metric):
    with pytest.raises(ValueError, match="'flashrag': use one of squad, r1_searcher"):
        metric("Paris", "Paris", normaliser="flashrag")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Paris", ["Paris"]),
        (["Paris", "Lyon"], ["Paris", "Lyon"]),
        (("Paris",), ["Paris"]),
        (np.array(["Paris", "Lyon"], dtype=object), ["Paris", "Lyon"]),
        (np.array("Paris"), ["Paris"]),
        ({"target": np.array(["Paris"])}, ["Paris"]),
        ([1999, " ", None, "x"], ["1999", "x"]),
        ([["Paris", "paris"]], ["Paris", "paris"]),
        ([["Paris", None], ("Lyon", [" "]), np.array(["Rome"], dtype=object)], ["Paris", "Lyon", "Rome"]),
        ({"target": [["Paris"], "Lyon"]}, ["Paris", "Lyon"]),
        (None, []),
        ([], []),
        ({}, []),
    ],
)
def test_golds_are_read_from_whatever_a_row_holds(value, expected):
    assert as_golds(value) == expected


@pytest.mark.parametrize("metric", [exact_match, token_f1, cover_exact_match])
def test_a_string_a_list_and_an_array_of_golds_score_the_same(metric):
    for prediction in ("the Paris", "Paris, France", "Rome"):
        value = metric(prediction, "Paris")
        assert metric(prediction, ["Paris"]) == metric(prediction, np.array(["Paris"])) == value


def restated(prediction: str, gold: str) -> tuple[float, float, float]:
    """The textbook formulas, with precision and recall, for texts that do not normalise away."""

    def tokens(text):
        kept = "".join(c for c in text.lower() if c not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", kept).split()

    p, g = tokens(prediction), tokens(gold)
    same = sum(min(n, g.count(token)) for token, n in collections.Counter(p).items())
    precision, recall = same / len(p), same / len(g)
    f1 = 2 * precision * recall / (precision + recall) if same else 0.0
    if p != g and (p in (["yes"], ["no"], ["noanswer"]) or g in (["yes"], ["no"], ["noanswer"])):
        f1 = 0.0
    return float(p == g), f1, float(all(token in p for token in g))


words = st.lists(
    st.sampled_from(["the", "a", "Paris", "paris,", "New", "York", "yes", "no", "U.S.", "é"]), max_size=6
)


@given(words, words)
def test_metrics_agree_with_a_second_statement_of_the_formulas(prediction_words, gold_words):
    prediction, gold = " ".join([*prediction_words, "x"]), " ".join([*gold_words, "x"])
    em, f1, cover = restated(prediction, gold)
    assert exact_match(prediction, gold) == em
    assert math.isclose(token_f1(prediction, gold), f1)
    assert cover_exact_match(prediction, gold) == cover


@given(st.text(), st.lists(st.text()))
def test_any_text_scores_between_0_and_1_and_em_is_the_strictest(prediction, golds):
    em, f1, cover = (metric(prediction, golds) for metric in (exact_match, token_f1, cover_exact_match))
    side_by_side = cover_exact_match(prediction, golds, ordered=True)
    assert 0 <= em <= f1 <= 1 and em <= side_by_side <= cover <= 1
    if not prediction.strip():
        assert cover == 0
    if prediction.strip():
        assert exact_match(prediction, [prediction]) == 1
