"""Our relevance of what was found is RAGAS's, or differs where the table says why.

The table is made by tests/golden/ragas_context_relevance.py, which runs RAGAS itself.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rag_r1.agent import Trajectory, Turn
from rag_r1.protocols import Document
from rag_r1.rewards import RewardSum
from rag_r1.rewards.terms.judged import RELEVANCE_PROMPTS
from tests.fakes.judge_server import JudgeServer

TABLE = json.loads((Path(__file__).parents[1] / "golden" / "ragas_context_relevance.json").read_text("utf-8"))
CASES = TABLE["cases"]


@pytest.fixture(scope="module")
def server():
    with JudgeServer(lambda body: "") as server:
        yield server


@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_value_is_that_of_the_table(number, server):
    case = CASES[number]
    replies = dict(zip(RELEVANCE_PROMPTS, case["judges"], strict=True))
    server.reply = lambda body: replies[body["messages"][0]["content"]]
    server.bodies.clear()
    documents = [Document(str(i), text) for i, text in enumerate(case["contexts"])]
    turns = [Turn.searched("search", ["q"], [documents]), Turn("answer", "answer")]
    entry = {"term": "context_relevance", "url": server.base, "model": "judge", "retries": 0}
    judgement = asyncio.run(
        RewardSum.from_config([entry]).judge(Trajectory("t", case["question"], "rag_r1_mq", turns), [])
    )
    assert judgement.rewards["context_relevance"] == case["here"]
    assert bool(judgement.missing) == (case["here"] is None)
    assert bool(server.bodies) == case["requests"]


def test_the_table_has_every_kind_of_reply_and_a_reason_for_every_difference():
    assert TABLE["ragas"].startswith("0.4.")
    pairs = {tuple(case["judges"]) for case in CASES}
    assert {(first, second) for first in "012" for second in "012"} <= pairs
    assert {("2", ""), ("", "1"), ("", ""), ("I cannot tell.", "I cannot tell.")} <= pairs
    for case in CASES:
        differs = case["ragas"] is None or case["ragas"] != case["here"]
        assert ("why" in case) == differs
