"""Which rows a round gives: the published rule by cases worked by hand, and what `safe` never does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.retriever.selection.rules import (
    REASONS,
    QueryRound,
    RowSelection,
    ScoredCandidate,
    SelectionRule,
    rows_of,
)

FAITHFUL, SAFE = SelectionRule(mode="faithful"), SelectionRule(mode="safe")


def round_of(*scores: tuple[float | None, int | None], index: int = 1) -> QueryRound:
    """A round whose candidates a, b, c, ... have these pairs of GAC and LR."""
    candidates = tuple(ScoredCandidate(chr(ord("a") + i), *pair) for i, pair in enumerate(scores))
    return QueryRound("hotpotqa", "q1", "Who?", index, ("first query",), "second query", candidates)


def filled(*scores: tuple[float, int]) -> QueryRound:
    """The same, with 15 candidates more that are of no use."""
    return round_of(*scores, *[(0.0, 10)] * 15)


def positives(query: QueryRound, rule: SelectionRule) -> str:
    """The positives of a round's rows in order, or the reason why it has none."""
    rows = rows_of(query, rule)
    return rows if isinstance(rows, str) else "".join(row.passage_ids[0] for row in rows)


#: What the first candidates have, and the positives of the published rule, or why it leaves the round out.
PUBLISHED = [
    ("the best by GAC, then by LR", [(0, 100), (1, 70), (1, 90)], "c"),
    ("GAC comes before LR", [(0, 100), (1, 61)], "b"),
    ("no candidate leads to a right answer", [(0, 100), (0, 90)], "not_correct"),
    ("the best is not relevant enough", [(1, 59), (0, 95)], "not_relevant"),
    ("60 is enough", [(1, 60)], "a"),
    ("ties make a row each", [(1, 80), (1, 80)], "ab"),
    ("at most three, in the retriever's order", [(1, 80), (1, 80), (1, 80), (1, 80)], "abc"),
    ("a point less is no tie", [(1, 80), (1, 79)], "a"),
    ("an equal LR with another GAC is no tie", [(1, 80), (0, 80)], "a"),
]


@pytest.mark.parametrize(("scores", "expected"), [c[1:] for c in PUBLISHED], ids=[c[0] for c in PUBLISHED])
def test_faithful_selects_the_published_positives(scores, expected):
    assert positives(filled(*scores), FAITHFUL) == expected


def test_a_row_has_the_published_keys_the_positive_first_and_fifteen_negatives():
    (row,) = rows_of(round_of((0.0, 0), (1.0, 95), *[(0.0, 10)] * 14), FAITHFUL)
    assert row.model_dump(mode="json", exclude_unset=True, exclude_none=True) == {
        "dataset": "hotpotqa",
        "query_id": "q1",
        "question": "Who?",
        "round_index": 1,
        "history_queries": ["first query"],
        "query_text": "second query",
        # The positive, then the others from the best on.
        "passage_ids": list("b" + "cdefghijklmnop" + "a"),
        "scores": [
            {"em": 1.0, "local_utility": 0.95},
            *[{"em": 0.0, "local_utility": 0.1}] * 14,
            {"em": 0.0, "local_utility": 0.0},
        ],
    }


def test_a_round_with_fewer_than_fifteen_negatives_is_left_out():
    assert positives(round_of((1.0, 90), *[(0.0, 10)] * 14), FAITHFUL) == "few_negatives"
    # Ties are no negatives, and neither are those beyond the third.
    assert positives(round_of(*[(1.0, 90)] * 5, *[(0.0, 10)] * 14), FAITHFUL) == "few_negatives"
    assert positives(round_of(*[(1.0, 90)] * 5, *[(0.0, 10)] * 15), FAITHFUL) == "abc"


def test_all_rows_of_a_round_have_the_same_negatives_and_none_of_the_ties():
    rows = rows_of(round_of(*[(1.0, 90)] * 4, *[(0.0, 10)] * 16), FAITHFUL)
    assert len(rows) == 3 and len({row.passage_ids[1:] for row in rows}) == 1
    assert set(rows[0].passage_ids[1:]) < set("efghijklmnopqrst") and len(rows[0].passage_ids) == 16


def test_faithful_makes_a_useful_passage_a_negative_and_safe_does_not():
    query = round_of((1.0, 100), (1.0, 92), *[(0.0, 10)] * 14)
    assert "b" in rows_of(query, FAITHFUL)[0].passage_ids[1:]
    assert positives(query, SAFE) == "few_negatives"
    (row,) = rows_of(round_of((1.0, 100), (1.0, 92), *[(0.0, 10)] * 15), SAFE)
    assert "b" not in row.passage_ids


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([(1, 100), (1, 95), (1, 94)], "ab"),
        ([(1, 100), (0, 99)], "a"),
        ([(1, 62), (1, 59)], "a"),  # a positive is never below least_relevance
        ([(1, 97), (1, 98), (1, 99), (1, 100)], "dcb"),
    ],
)
def test_safe_sees_a_tie_within_the_tolerance(scores, expected):
    assert positives(filled(*scores), SAFE) == expected


@pytest.mark.parametrize(
    ("use", "scores", "expected"),
    [
        ("relevance", [(None, 70), (None, 90), (None, 90)], "bc"),
        ("relevance", [(None, 59)], "not_relevant"),
        ("correctness", [(0, None), (1, None), (1, None), (1, None), (1, None)], "bcd"),
        ("correctness", [(0, None)], "not_correct"),
        ("both", [(1, None)], "unscored"),
        ("both", [(None, 90)], "unscored"),
    ],
)
@pytest.mark.parametrize("mode", ["faithful", "safe"])
def test_one_utility_alone_decides_if_it_is_told_to(mode, use, scores, expected):
    others = {"relevance": (None, 10), "correctness": (0.0, None), "both": (0.0, 10)}[use]
    assert positives(round_of(*scores, *[others] * 15), SelectionRule(mode=mode, use=use)) == expected


def test_what_was_not_measured_is_0_in_a_row():
    (row,) = rows_of(round_of((None, 90), *[(None, 10)] * 15), SelectionRule(use="relevance"))
    assert {score.em for score in row.scores} == {0.0}


def test_the_draw_depends_on_the_seed_and_the_round_alone():
    query = round_of((1.0, 90), *[(0.0, 10)] * 19)
    drawn = {rows_of(query, replace(FAITHFUL, seed=seed))[0].passage_ids for seed in range(8)}
    assert len(drawn) > 1
    other = replace(query, round_index=2)
    alone, among = RowSelection(FAITHFUL), RowSelection(FAITHFUL)
    rows = [row for row in among.select([other, query]) if row.round_index == 1]
    assert list(alone.select([query])) == rows
    shuffled = replace(query, candidates=(query.candidates[0], *reversed(query.candidates[1:])))
    assert set(rows_of(shuffled, FAITHFUL)[0].passage_ids) == set(rows_of(query, FAITHFUL)[0].passage_ids)


def test_what_is_left_out_is_counted_and_told():
    selection = RowSelection(FAITHFUL)
    rounds = [filled((1, 80), (1, 80)), filled((0, 80)), round_of((1.0, 80)), round_of()]
    assert len(list(selection.select(rounds))) == selection.rows == 2 and selection.rounds == 4
    assert selection.excluded == {"not_correct": 1, "few_negatives": 1, "no_candidates": 1}
    assert selection.lines()[0] == "training rows: 2 of 1 rounds"
    assert all(why in REASONS for why in selection.excluded)


def test_a_candidate_that_is_named_twice_is_an_error():
    query = filled((1, 80))
    with pytest.raises(ValueError, match="q1, round 1: a candidate is named twice"):
        rows_of(replace(query, candidates=(*query.candidates, query.candidates[0])), FAITHFUL)


rounds = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.integers(0, 100)), min_size=16, max_size=24
).map(lambda scores: round_of(*scores))


def test_a_positive_that_must_be_more_relevant_makes_no_useful_passage_a_negative():
    rule = replace(SAFE, least_relevance=95)
    assert positives(round_of((1.0, 100), (1.0, 94), *[(0.0, 1)] * 14), rule) == "few_negatives"
    (row,) = rows_of(round_of((1.0, 100), (1.0, 94), *[(0.0, 1)] * 15), rule)
    assert "b" not in row.passage_ids


uses = st.sampled_from(["both", "relevance", "correctness"])


@given(rounds, st.integers(0, 3), uses, st.integers(0, 100))
def test_safe_never_uses_a_useful_passage_as_a_negative(query, seed, use, least):
    rows = rows_of(query, SelectionRule(mode="safe", use=use, seed=seed, least_relevance=least))
    if isinstance(rows, str):
        return
    of = {candidate.passage_id: candidate for candidate in query.candidates}
    for row in rows:
        positive, *negatives = (of[name] for name in row.passage_ids)
        for negative in negatives:
            useful = negative.correctness if use != "relevance" else 1.0
            assert not (useful and (use == "correctness" or negative.relevance >= min(least, 60)))
            assert not (use == "both" and negative.correctness == 1 and negative.relevance >= 90)
        if use != "relevance":
            assert positive.correctness == max(candidate.correctness for candidate in query.candidates)
        if use != "correctness":
            assert positive.relevance >= least
        assert len(negatives) == 15 and positive not in negatives


@given(rounds, st.sampled_from(["both", "relevance", "correctness"]))
def test_faithful_rows_are_the_published_ones(query, use):
    """The published steps in the plainest words: sort, look at the first, tell ties from others."""
    rows = rows_of(query, SelectionRule(mode="faithful", use=use))
    keys = {
        "both": lambda c: (c.correctness, c.relevance),
        "relevance": lambda c: (c.relevance,),
        "correctness": lambda c: (c.correctness,),
    }
    key = keys[use]
    best = max(map(key, query.candidates))
    ties = [c.passage_id for c in query.candidates if key(c) == best]
    others = {c.passage_id for c in query.candidates} - set(ties)
    first = next(c for c in query.candidates if key(c) == best)
    is_wrong = use != "relevance" and first.correctness == 0
    is_off = use != "correctness" and first.relevance < 60
    if is_wrong or is_off or len(others) < 15:
        assert isinstance(rows, str)
        return
    assert [row.passage_ids[0] for row in rows] == ties[:3]
    assert all(set(row.passage_ids[1:]) <= others and len(row.passage_ids) == 16 for row in rows)
