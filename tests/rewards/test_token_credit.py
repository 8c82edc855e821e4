"""The law of sums for tokens: what they have is the score, however the text is cut and whatever the terms."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import Trajectory, Turn
from rag_r1.protocols import Document, load_protocol
from rag_r1.rewards import RewardResult, RewardSum
from rag_r1.rewards.spans import SpanValue
from rag_r1.rewards.term_call import Term
from rag_r1.rewards.token_credit import token_scores
from tests.fakes.judge_server import JudgeServer

PIECES = [*"<reasoning> </reasoning> <search> </search> <answer> </answer> <summary>".split(), "x ", ""]


def played(*texts: str) -> Trajectory:
    return Trajectory("t", "?", "agentic_rag_en", [Turn(text, "invalid") for text in texts])


def characters(trajectory: Trajectory) -> list[list[tuple[int, int]]]:
    """A token for each character."""
    return [[(i, i + 1) for i in range(len(turn.text))] for turn in trajectory.turns]


def scores_of(reward: RewardSum, trajectory: Trajectory, tokens: Any = None) -> list[list[float]]:
    return token_scores(reward, judged_by(reward, trajectory), trajectory, tokens or characters(trajectory))


def judged_by(reward: RewardSum, trajectory: Trajectory) -> RewardResult:
    return reward.result_of(trajectory, [term(trajectory, []) for term in reward.terms])


@st.composite
def cut(draw, trajectory: Trajectory) -> list[list[tuple[int, int]]]:
    """Tokens of any length, also without text, for each turn; or no token at all."""
    tokens = []
    for turn in trajectory.turns:
        places = draw(st.lists(st.integers(0, len(turn.text)), max_size=8))
        whole = draw(st.booleans()) and turn.text
        tokens.append([*pairwise(sorted([0, *places, len(turn.text)]))] if whole else [])
    return tokens


@st.composite
def cases(draw):
    texts = draw(st.lists(st.lists(st.sampled_from(PIECES), max_size=6).map("".join), max_size=4))
    trajectory = played(*texts)
    numbers = st.floats(-1e3, 1e3)
    given = st.none() | numbers | st.lists(numbers, min_size=len(texts), max_size=len(texts))
    terms = [
        Term(f"term_{i}", draw(numbers), lambda trajectory, golds, value=value: value)
        for i, value in enumerate(draw(st.lists(given, max_size=3)))
    ]
    [form] = RewardSum.from_config([{"term": "agentic_rag_format", "weight": draw(st.floats(-3, 3))}]).terms
    return trajectory, draw(cut(trajectory)), RewardSum((*terms, form))


@given(cases())
def test_the_tokens_sum_to_the_score_and_have_the_shape_of_the_turns(case):
    trajectory, tokens, reward = case
    result = judged_by(reward, trajectory)
    scores = token_scores(reward, result, trajectory, tokens)
    assert [len(turn) for turn in scores] == [len(turn) for turn in tokens]
    if any(tokens):
        total = math.fsum(score for turn in scores for score in turn)
        assert total == pytest.approx(result.rewards["score"], rel=1e-9, abs=1e-6)


def test_an_outcome_is_everyones_and_the_numbers_of_turns_stay_in_their_turns():
    trajectory = played("ab", "cd")
    for value, expected in ((1.0, [[0.5, 0.5], [0.5, 0.5]]), ([1.0, 0.0], [[1.0, 1.0], [0.0, 0.0]])):
        reward = RewardSum((Term("term", 2.0, lambda trajectory, golds, value=value: value),))
        assert scores_of(reward, trajectory) == expected


def test_each_part_of_the_format_goes_to_its_tags():
    # Thought: 0.2 for each tag; search: 0.2 for both tags; the answer is never closed.
    trajectory = played("a<reasoning>b</reasoning>", "<search>c</search><answer>")
    reward = RewardSum.from_config([{"term": "agentic_rag_format"}])
    first, second = scores_of(reward, trajectory)
    opening, closing, pair = 0.2 / 11, 0.2 / 12, 0.2 / 17
    assert first == pytest.approx([0.0, *[opening] * 11, 0.0, *[closing] * 12])
    assert second == pytest.approx([*[pair] * 8, 0.0, *[pair] * 9, *[0.0] * 8])


def test_a_token_that_only_touches_a_tag_gets_nothing_and_one_that_overlaps_it_its_share():
    trajectory = played("ab<answer>c</answer>d")
    reward = RewardSum.from_config([{"term": "agentic_rag_format", "answer": 0.4}])
    tokens = [[(0, 2), (2, 5), (5, 11), (11, 20), (20, 21)]]
    [scores] = scores_of(reward, trajectory, tokens)
    assert scores == pytest.approx([0.0, 0.4 / 3, 0.4 / 3, 0.4 / 3, 0.0])


def test_the_relevance_of_what_was_found_goes_to_the_search_blocks_and_what_is_left_out_nowhere():
    text = "ab<search>c</search>"
    turns = [Turn.searched(text, ["c"], [[Document("1", "found")]]), Turn("de", "answer")]
    trajectory = Trajectory("t", "?", "agentic_rag_en", turns)
    with JudgeServer(lambda body: "2") as server:
        judge = {"url": server.base, "model": "judge", "retries": 0}
        reward = RewardSum.from_config([{"term": "context_relevance", "weight": 2.0, **judge}])
        result = asyncio.run(reward.judge(trajectory, []))
    scores = token_scores(reward, result, trajectory, characters(trajectory))
    assert scores == [pytest.approx([0.0, 0.0, *[2 / 18] * 18]), [0.0, 0.0]]
    protocol = replace(load_protocol("agentic_rag_en"), name="own")
    there = replace(trajectory, protocol="own")
    assert token_scores(reward, result, there, characters(there), protocol) == scores
    result.credits.clear()
    assert token_scores(reward, result, trajectory, characters(trajectory)) == [[0.0] * 20, [0.0] * 2]


def test_a_wrong_number_of_turns_and_parts_of_another_sum_are_refused():
    def of_one(trajectory: Trajectory, golds: Any) -> float:
        return 1.0

    of_one.credit_parts = lambda trajectory, value, *, protocol: [SpanValue(0.5, ((0, 1),))]
    trajectory, reward = played("a"), RewardSum((Term("term", 1.0, of_one),))
    result = judged_by(reward, trajectory)
    with pytest.raises(ValueError, match="tokens of 2 turns for a trajectory of 1"):
        token_scores(reward, result, trajectory, [[], []])
    with pytest.raises(ValueError, match="parts of the term 'term' sum to 0.5, not to 1.0"):
        token_scores(reward, result, trajectory, [[(0, 1)]])


def test_a_token_without_text_has_no_part_of_a_span():
    from rag_r1.rewards.token_credit import _covered_tokens

    assert _covered_tokens([(1, 4), (3, 6)], [(0, 1), (1, 2), (2, 2), (5, 9), (6, 7)]) == [1, 3]
