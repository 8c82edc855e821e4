"""Relevance by a judge, whose parts are asked for apart, and by the rule where there is none."""

from __future__ import annotations

import json
import types
from contextlib import asynccontextmanager
from functools import partial

import pytest

from rag_r1.evaluation.judge import JudgeArguments
from rag_r1.inference.client import Response
from rag_r1.inference.strict_replies import ATTEMPTS
from rag_r1.protocols import Document
from rag_r1.retriever.data.judge import ListJudge, check_scores
from rag_r1.retriever.data.relevance import RelevanceScorer, holds_answer, rule_records
from rag_r1.runs.response_cache import Usage

GIVEN = JudgeArguments(judge_url="http://127.0.0.1:1/v1", judge_model="j")


class Endpoint:
    """Replies to a case by its part; `parts`: those requested, in order."""

    def __init__(self, **replies: str):
        self.replies, self.parts = replies, []
        self.stop = types.SimpleNamespace(reason=None)

    async def retried(self, attempt):
        return await attempt()

    @asynccontextmanager
    async def post(self, path, body, *unused):
        part = json.loads(body["messages"][-1]["content"])["part"]
        self.parts.append(part)
        choice = {"message": {"content": self.replies[part]}}
        yield Response({"choices": [choice]}, Usage(1, 1, 1))


async def scores(folder, endpoint: Endpoint) -> list[int] | None:
    """One start over a round of two parts; its scores."""
    with RelevanceScorer(GIVEN, None, folder) as relevance:
        judge = ListJudge(GIVEN, endpoint, relevance.folder.cache)
        cases = [({"part": part}, partial(check_scores, count=2)) for part in "AB"]
        await relevance._request(judge, "relevance", ("q", 1), "fp", cases)
        return relevance.get(("q", 1), "fp")


async def test_of_a_round_only_the_part_without_scores_is_asked_again(tmp_path):
    first = Endpoint(A="[90, 5]", B="no list")
    assert await scores(tmp_path, first) is None
    assert sorted(first.parts) == ["A", *"B" * ATTEMPTS]
    second = Endpoint(B="[1, 2]")
    assert await scores(tmp_path, second) == [90, 5, 1, 2]
    assert second.parts == ["B"], "exactly one request"
    third = Endpoint()
    assert await scores(tmp_path, third) == [90, 5, 1, 2] and third.parts == []


async def test_a_part_that_fails_in_several_starts_keeps_what_the_others_have(tmp_path):
    await scores(tmp_path, Endpoint(A="no", B="[1, 2]"))
    again = Endpoint(A="no")
    assert await scores(tmp_path, again) is None and again.parts == ["A"] * ATTEMPTS
    assert await scores(tmp_path, Endpoint(A="[3, 4]")) == [3, 4, 1, 2]


@pytest.mark.parametrize("gold", ["no", "Yes.", "The", "", "?!"])
def test_a_word_that_stands_anywhere_is_no_answer_that_a_text_can_hold(gold):
    document = Document("1", "The town has no river; yes, the town.")
    assert not holds_answer(document, [gold])
    assert holds_answer(document, [gold, "river"]) and not holds_answer(document, [gold, "sea"])


def test_the_rule_leaves_rounds_without_such_an_answer_unscored():
    trajectories = [played("a", "river"), played("b", "no"), played("c", "no", "river")]
    records = rule_records(candidates_of({"1": "There is no river."}), trajectories)
    assert [(record.id, record.docid_score) for record in records] == [("a", {"1": 100}), ("c", {"1": 100})]


def played(name: str, *golds: str, steps: tuple[str, ...] = ()):
    return types.SimpleNamespace(id=name, golds=golds, step_answers=steps)


def candidates_of(texts: dict[str, str]):
    """Candidates of one round of each trajectory: the same for all."""
    documents = [Document(*pair) for pair in texts.items()]

    def rounds(trajectories):
        return ((types.SimpleNamespace(index=1, played=trajectory), documents) for trajectory in trajectories)

    return types.SimpleNamespace(rounds=rounds)


def test_by_the_rule_a_passage_with_the_answer_of_a_step_is_as_good_as_one_with_the_answer():
    candidates = candidates_of(
        {"1": "Heat was directed by Michael Mann.", "2": "Mann was born in Chicago.", "3": "Ulm."}
    )

    def scores(*golds: str, steps: tuple[str, ...] = ()) -> list[dict[str, int]]:
        return [record.docid_score for record in rule_records(candidates, [played("q", *golds, steps=steps)])]

    assert scores("Chicago") == [{"1": 0, "2": 100, "3": 0}]
    assert scores("Chicago", steps=("Michael Mann", "Chicago")) == [{"1": 100, "2": 100, "3": 0}]
    assert scores("yes", steps=("Michael Mann", "no")) == [{"1": 100, "2": 0, "3": 0}]
    assert scores("yes", steps=("no",)) == []
