"""The judged terms, with a real judge's server: what it is asked, what its replies are worth, and that a
judge that fails leaves the term out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rag_r1.agent import CallRecord, Trajectory, Turn
from rag_r1.protocols import Document
from rag_r1.rewards import RewardResult, RewardSum
from rag_r1.rewards.terms.judged import ACCURACY_PROMPT, RELEVANCE_PROMPTS
from tests.fakes.judge_server import JudgeServer

PAGE = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text(encoding="utf-8")
SECRET = "the river is the Danube"


def entry(term: str, url: str, **options: Any) -> dict[str, Any]:
    return {"term": term, "url": url, "model": "grader", "retries": 0, "backoff_s": 0.0, **options}


def document(text: str) -> Document:
    return Document("1", text)


def searched(answer: str | None = "the Danube", *texts: str) -> Trajectory:
    """A search, a call of another tool, a failed search, and the answer."""
    texts = texts or ("Ulm\nUlm lies on a river.", SECRET)
    first, other = [document(text) for text in texts[:1]], [document(text) for text in texts[1:]]
    turns = [
        Turn.searched("think", ["river of Ulm", "again"], [first, []]),
        Turn("call", "call", [CallRecord("map", {"place": "Ulm"}, other)]),
        Turn("search", "search", [CallRecord("search", {"query": "q"}, None, status="failed")]),
        Turn("say", "answer"),
    ]
    return Trajectory("t", "Which river flows through Ulm?", "rag_r1_mq", turns, answer=answer)


def judged(
    term: str,
    trajectory: Trajectory,
    reply: Callable[[dict[str, Any]], Any],
    golds: list[str] | str = "Danube",
    **options: Any,
) -> tuple[RewardResult, JudgeServer]:
    """The judgement by em and this term with weight 3, and the server that was asked."""
    with JudgeServer(reply) as server:
        reward = RewardSum.from_config([{"term": "em"}, entry(term, server.base, weight=3.0, **options)])
        return asyncio.run(reward.judge(trajectory, golds)), server


def grades(first: Any, second: Any) -> Callable[[dict[str, Any]], Any]:
    """Replies to the two prompts."""
    replies = dict(zip(RELEVANCE_PROMPTS, (first, second), strict=True))
    return lambda body: replies[body["messages"][0]["content"]]


@pytest.mark.parametrize(("reply", "value"), [("correct", 1.0), (" Incorrect.", 0.0)])
def test_an_answer_is_worth_what_the_judge_says_at_the_last_turn(reply, value):
    judgement, server = judged("judged_accuracy", searched("der Donau"), lambda body: reply)
    rewards = {"score": 3 * value, "em": 0.0, "judged_accuracy": value, "missing_terms": 0.0}
    assert judgement == RewardResult(rewards, [0.0, 0.0, 0.0, 3 * value], {})
    assert server.bodies[0]["messages"][0]["content"] == ACCURACY_PROMPT
    assert server.cases == [
        {
            "question": "Which river flows through Ulm?",
            "accepted_answers": ["Danube"],
            "given_answer": "der Donau",
        }
    ]


@pytest.mark.parametrize("answer", [None, "", " \n"])
def test_no_answer_is_wrong_without_asking(answer):
    judgement, server = judged("judged_accuracy", searched(answer), lambda body: "correct")
    assert judgement.rewards["judged_accuracy"] == 0.0 and not judgement.missing and not server.bodies


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [("0", "0", 0.0), ("0", "1", 0.25), ("2.", " 1\n", 0.75), ("2", "0", 0.5), ("2", "2", 1.0)],
)
def test_relevance_is_half_the_mean_of_two_grades(first, second, value):
    judgement, server = judged("context_relevance", searched(), grades(first, second))
    assert judgement.rewards["context_relevance"] == value and len(server.bodies) == 2


def test_relevance_is_about_all_that_was_shown_and_not_about_the_gold_answer():
    _, server = judged("context_relevance", searched(), grades("2", "2"), golds=["Danube", "Donau"])
    context = "Ulm\nUlm lies on a river.\nthe river is the Danube"
    assert server.cases == [{"question": "Which river flows through Ulm?", "context": context}] * 2
    prompts = {body["messages"][0]["content"] for body in server.bodies}
    assert prompts == set(RELEVANCE_PROMPTS) and len(prompts) == 2


@pytest.mark.parametrize("unusable", ["3", "-1", "1.5", "1 2", "grade 2", "", "two", 500, 400])
def test_if_one_prompt_gets_no_usable_grade_the_other_counts_alone(unusable):
    for replies in (("2", unusable), (unusable, "2")):
        judgement, _ = judged("context_relevance", searched(), grades(*replies))
        assert judgement.rewards["context_relevance"] == 1.0 and judgement.missing == {}


@pytest.mark.parametrize(
    "trajectory",
    [
        Trajectory("t", "Who?", "rag_r1_mq"),
        Trajectory("t", "Who?", "rag_r1_mq", [Turn("say", "answer")], answer="I"),
        searched("x", " ", "\n"),
        searched("x", "river flows", ""),
    ],
    ids=["no turn", "no search", "blank", "words of the question"],
)
def test_nothing_found_is_not_relevant_without_asking(trajectory):
    judgement, server = judged("context_relevance", trajectory, lambda body: "2")
    assert judgement.rewards["context_relevance"] == 0.0 and not judgement.missing and not server.bodies


def broken_off(body: dict[str, Any]) -> Any:
    return b'{"choices": [{"message": {"content": null, "refusal": "I cannot"}}]}'


FAILURES = {
    "time-out": (lambda body: None, {"timeout_s": 0.1}, r"no answer within 0\.1 s|nothing within 0\.1 s"),
    "HTTP 500": (lambda body: 500, {}, r"HTTP 500 \(attempt 1, the last\)"),
    "HTTP 400": (lambda body: 400, {}, "refused the request: HTTP 400"),
    "declined": (broken_off, {}, "the judge declined"),
    "refusal as a text": (lambda body: f"I cannot judge {SECRET}", {}, "reply is none of: "),
    "garbage": (lambda body: "!?", {}, "reply is none of: "),
    "cost": (lambda body: 503, {"max_requests": 1, "retries": 5}, r"max_requests \(1\) have been sent"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("term", ["judged_accuracy", "context_relevance", "query_relevance"])
def test_a_judge_that_fails_leaves_the_term_out_with_a_reason_that_tells_no_text(term, failure):
    reply, options, why = FAILURES[failure]
    judgement, _ = judged(term, searched("Danube"), reply, **options)
    rewards = {"score": 1.0, "em": 1.0, term: None, "missing_terms": 1.0}
    assert (judgement.rewards, judgement.turn_scores) == (rewards, [0.0, 0.0, 0.0, 1.0])
    assert re.search(why, judgement.missing[term]) and SECRET not in judgement.missing[term]


def test_the_queries_of_a_turn_are_one_search_and_each_is_graded_for_its_turn():
    judgement, server = judged(
        "query_relevance",
        searched(),
        lambda body: "10" if "again" in body["messages"][1]["content"] else "3",
        baseline=0.25,
    )
    assert sorted(case["queries"] for case in server.cases) == [["q"], ["river of Ulm", "again"]]
    assert judgement.turn_scores == pytest.approx([3 * 0.75, 0.0, 3 * 0.05, 1.0])  # the last is EM's


@pytest.mark.parametrize("unusable", ["11", "0.7", ""])
def test_one_search_without_a_grade_leaves_the_whole_term_out(unusable):
    judgement, _ = judged(
        "query_relevance",
        searched(),
        lambda body: "10" if "again" in body["messages"][1]["content"] else unusable,
    )
    assert judgement.rewards["query_relevance"] is None and judgement.rewards["score"] == 1.0


def test_a_group_with_equal_answers_is_one_request_and_both_terms_share_a_client(tmp_path):
    def reply(body: dict[str, Any]) -> str:
        return "correct" if body["messages"][0]["content"] == ACCURACY_PROMPT else "1"

    async def group(reward: RewardSum) -> list[RewardResult]:
        return await asyncio.gather(*(reward.judge(searched(), "Danube") for _ in range(8)))

    with JudgeServer(reply, delay_s=0.02) as server:
        terms = [
            entry(term, server.base, max_requests=3) for term in ("judged_accuracy", "context_relevance")
        ]
        for judgement in asyncio.run(group(RewardSum.from_config(terms))):
            assert judgement.rewards["score"] == 1.5 and not judgement.missing
    assert len(server.bodies) == 3


def test_the_entries_of_the_page_are_agentic_rag_r1s_weights_and_are_accepted():
    [entries] = [
        block["rag_r1"]["reward"]
        for block in map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
        if "judged_accuracy" in str(block)
    ]
    weights = {term.name: term.weight for term in RewardSum.from_config(entries).terms}
    assert weights == {"judged_accuracy": 3.0, "context_relevance": 2.0, "agentic_rag_format": 1.0}
