"""The terms on the page about rewards run, with the entries that it gives, and do what it says."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from rag_r1.agent import Trajectory, Turn
from rag_r1.protocols import Document
from rag_r1.rewards import RewardResult, RewardSum
from tests.fakes.openai_server import OpenAIServer, Reply

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")
ENTRIES = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL).group(1))["rag_r1"]["reward"]


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n# my_rewards\.py\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    (tmp_path / "my_rewards.py").write_text("\n".join(blocks), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    yield
    sys.modules.pop("my_rewards", None)


def searched(answer: str | None) -> Trajectory:
    """Three turns, of which the first finds nothing of use and the second and third a gold answer."""
    results = (["Ulm is a town."], ["The river is the Danube."], ["Danube, again."])
    turns = [Turn.searched("", ["q"], [[Document("1", text) for text in texts]]) for texts in results]
    return Trajectory("t", "Which river?", "rag_r1_mq", [*turns, Turn("", "answer")], answer=answer)


def judged(answer: str | None, reply: Reply) -> tuple[RewardResult, list[dict]]:
    """The judgement by the page's entries of an answer, and what the judge was asked."""
    with OpenAIServer(lambda body: reply) as server:
        entries = [{**e, "url": server.base} if "url" in e else e for e in ENTRIES]
        return asyncio.run(RewardSum.from_config(entries).judge(searched(answer), "Danube")), server.bodies


@pytest.mark.parametrize(("verdict", "value"), [("Yes", 1.0), (" no\n", 0.0)])
def test_the_judge_of_the_page_is_asked_and_its_verdict_counts(own_module, verdict, value):
    judgement, [request] = judged("the Danube", verdict)
    assert judgement.rewards["approved"] == value and judgement.missing == {}
    assert judgement.rewards["score"] == pytest.approx(1.0 + 0.2 + 0.5 * value)
    assert request["model"] == "judge" and "the Danube" in request["messages"][0]["content"]


def test_the_turn_that_first_found_the_answer_has_the_term_of_the_page(own_module):
    judgement, requests = judged(None, "yes")
    assert judgement.rewards["first_evidence"] == 1.0 and not requests
    assert judgement.turn_scores == pytest.approx([0.0, 0.2, 0.0, 0.0])


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (lambda: "Perhaps.", ""),
        (lambda: web.Response(status=503), "the judge is away: HTTPStatusError"),
    ],
)
def test_a_judge_that_is_away_or_unsure_leaves_its_term_out(own_module, reply, why):
    judgement, _ = judged("Danube", reply())
    assert judgement.rewards["approved"] is None and judgement.missing["approved"].startswith(why)
    assert judgement.rewards["score"] == pytest.approx(1.2)
