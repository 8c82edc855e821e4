"""Agentic RAG-R1's format reward on cases made by hand; the values are those of its released code."""

import pytest

from rag_r1.agent import Trajectory, Turn
from rag_r1.protocols import Document
from rag_r1.rewards import RewardSum

THOUGHT, BACKTRACK, SUMMARY = (f"<{name}> x </{name}>" for name in ("reasoning", "backtrack", "summary"))
SEARCH, ANSWER = "<search> [Wiki_RAG]: x </search>", "<answer> x </answer>"
BEST = [THOUGHT + SEARCH, BACKTRACK + SEARCH, SUMMARY + SEARCH, ANSWER]


def score(texts, protocol="agentic_rag_en", **options):
    turns = [Turn(text, "think") for text in texts]
    reward = RewardSum.from_config([{"term": "agentic_rag_format", **options}])
    return reward(Trajectory("t", "?", protocol, turns=turns), "x")["score"]


@pytest.mark.parametrize(
    ("texts", "value"),
    [
        ([], 0.0),
        (["no tags"], 0.0),
        (BEST, 2.2),
        ([THOUGHT], 0.4),
        (["<reasoning> never closed"], 0.2),
        ([THOUGHT, THOUGHT], 0.4),
        ([SEARCH], 0.2),
        ([SEARCH] * 3, 0.6),
        ([SEARCH] * 4, -0.2),
        ([SEARCH] * 6, -0.6),
        (["<search> open", SEARCH], 0.2),
        ([ANSWER], 0.4),
        ([ANSWER, ANSWER], 0.0),
        (["<answer> open"], 0.0),
        ([THOUGHT, SEARCH, ANSWER], 1.0),
        ([*BEST, SEARCH], 1.4),
    ],
)
def test_the_values_of_the_released_code(texts, value):
    assert score(texts) == pytest.approx(value)
    assert score(texts, "agentic_rag_zh") == pytest.approx(value)


def test_tags_in_a_document_earn_nothing():
    turn = Turn.searched(SEARCH, ["x"], [[Document("1", "".join(BEST))]])
    record = Trajectory("t", "?", "agentic_rag_en", turns=[turn])
    assert RewardSum.from_config([{"term": "agentic_rag_format"}])(record, "x")["score"] == pytest.approx(0.2)


def test_a_protocol_without_a_backtrack_can_earn_less():
    tags = ["<think> x </think>", "<search> x </search>", ANSWER]
    assert score(tags, "rag_r1_sq") == pytest.approx(1.0)
    assert score([*tags, BACKTRACK], "rag_r1_sq") == pytest.approx(1.0)
