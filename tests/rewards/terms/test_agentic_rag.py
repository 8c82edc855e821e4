"""Agentic RAG-R1's rewards on cases made by hand; the values are those of its released code."""

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from rag_r1.agent import Trajectory, Turn
from rag_r1.protocols import Document
from rag_r1.rewards import RewardError, RewardResult, RewardSum
from rag_r1.rewards.terms.judged import QUERY_PROMPT
from tests.fakes.judge_server import JudgeServer

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


VERL_DEV = Path(__file__).parents[3] / "recipes" / "agentic_rag" / "reward" / "verl_dev.yaml"
THINK = "<think> t </think>"
#: The judge's grade of each query, from 0 to 10.
GRADES = {"x": 8, "y": 1, "z": 10, "w": 5}


def by_verl_dev(texts: list[str], answer: str | None) -> RewardResult:
    """The judgement of a trajectory with these turns; `search x` at the end of a turn is a search."""

    def turn(text: str) -> Turn:
        *before, query = text.split("search ")
        if not before:
            return Turn(text, "invalid")
        return Turn.searched(f"{before[0]}<search> {query} </search>", [query], [[Document("1", "d")]])

    def grade(body: dict) -> str:
        case = json.loads(body["messages"][1]["content"])
        assert case["question"] == "Who?" and body["messages"][0]["content"] == QUERY_PROMPT
        [query] = case["queries"]
        return str(GRADES[query])

    played = Trajectory("t", "Who?", "rag_r1_sq", [turn(text) for text in texts], answer=answer)
    with JudgeServer(grade) as server:
        entries = yaml.safe_load(VERL_DEV.read_text())["rag_r1"]["reward"]
        there = {"url": server.base, "model": "judge"}
        reward = RewardSum.from_config([{**entry, **there} if "url" in entry else entry for entry in entries])
        return asyncio.run(reward.judge(played, ["Ada"]))


@pytest.mark.parametrize(
    ("texts", "answer", "value", "turns"),
    [
        ([THINK + "search x", THINK + "<answer> Ada </answer>"], "Ada", 6.5, [0.45, 6.05]),
        (["search y", "<answer> Bob </answer>"], "Bob", 0.5, [-0.4, 0.9]),
        ([THINK + "search z", THINK + "search w", THINK], None, 0.8, [0.6, 0.1, 0.1]),
        (["<think> tsearch x", "<answer> Ada </answer>"], "Ada", 6.2, [0.3, 5.9]),
        ([], None, 0.0, []),
        ([THINK + THINK + "<answer> Ada"], None, 0.3, [0.3]),
        (["search x", "search x", "search y"], None, 0.2, [0.3, 0.3, -0.4]),
    ],
)
def test_the_reward_of_verl_dev_has_the_released_values_each_in_its_turn(texts, answer, value, turns):
    judgement = by_verl_dev(texts, answer)
    assert judgement.rewards["score"] == pytest.approx(value) and not judgement.missing
    assert judgement.turn_scores == pytest.approx(turns)


def test_a_block_that_spans_turns_counts_where_it_is_closed_and_a_role_without_a_block_for_nothing():
    played = Trajectory("t", "?", "rag_r1_sq", [Turn("<think> a", "invalid"), Turn("b </think>", "invalid")])

    def turns(role: str) -> list[float]:
        reward = RewardSum.from_config([{"term": "closed_block", "role": role}])
        return asyncio.run(reward.judge(played, [])).turn_scores

    assert turns("think") == [0.0, 1.0] and turns("summary") == [0.0, 0.0]
    with pytest.raises(
        RewardError, match=r"rag_r1.reward\[0\].role must be one of think, plan, .*not 'thought'"
    ):
        turns("thought")
