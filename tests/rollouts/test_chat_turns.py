"""Turns of a chat template in an evaluation: what needs the template is refused without it, and a baseline
without a search is shown no tools."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rag_r1.config.agent_setup import RowLimits
from rag_r1.config.schema import RagR1Config
from rag_r1.data.rows import QuestionRow
from rag_r1.data.sft_rows import Piece, SftRow
from rag_r1.data.sft_tokens import protocol_of_rows
from rag_r1.evaluation.baselines import baseline
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.io.errors import DataError
from rag_r1.protocols import Document
from rag_r1.rollouts.engine_factory import TokenUnit, agent_setup
from rag_r1.rollouts.one_shot import prepare_one_shot
from rag_r1.rollouts.requests import make_request
from rag_r1.rollouts.response_format import response_format
from rag_r1.rollouts.session import open_session, prepare
from rag_r1.runs.errors import RunError
from rag_r1.sft.data import _load_protocol
from rag_r1.tools import search_tools
from tests.agent.chat_templates import PLAIN, tokenizer_with
from tests.fakes.scripted_engine import Searcher
from tests.fakes.scripted_vllm import Policy

CONFIG = RagR1Config.from_config({"protocol": "agentic_rag_tools"})
LIMITS = RowLimits(2000, 2000)


def setup(template="plain", limits=LIMITS):
    return agent_setup(CONFIG, TokenUnit("a tokenizer", tokenizer_with(template)), limits)


def test_a_tokenizer_must_be_given():
    with pytest.raises(RunError, match="agentic_rag_tools takes its turns .*--tokenizer"):
        agent_setup(CONFIG, TokenUnit("characters"), LIMITS)


def test_a_chat_endpoint_is_refused():
    with pytest.raises(RunError, match="--engine chat cannot play.*--engine completions"):
        asyncio.run(response_format("chat", None, "m", {}, setup()))


def test_a_prompt_that_is_too_long_for_every_question_is_named():
    behind_a_proxy = SimpleNamespace(options=SimpleNamespace(trust_env=True))
    with pytest.raises(RunError, match="more than 128 characters.*raise --max-prompt-tokens"):
        asyncio.run(response_format("completions", behind_a_proxy, "m", {}, setup(limits=RowLimits(1, 9))))


def test_a_template_that_cannot_be_used_is_refused_with_the_tokenizers_name():
    with pytest.raises(
        RunError, match="--tokenizer a tokenizer: .* does not show tools.*custom_chat_template"
    ):
        setup(PLAIN.replace("{% if tools %}", "{% if false %}"))


@pytest.mark.parametrize("name", ["direct", "cot", "one_shot", "no_search"])
def test_only_the_agents_own_prompt_shows_its_tools(name):
    of_row = baseline(name, setup()).setup(QuestionRow("Who?", ("x",), id="q"))
    text = tokenizer_with("plain").decode(of_row.prompt_ids("Who?"))
    assert ('"name": "search"' in text) == (name == "no_search")


def test_one_shot_shows_its_passages_in_the_prompt_and_not_as_a_message():
    row = QuestionRow("Who?", ("x",), id="q")
    agent = baseline("one_shot", setup()).setup(row)
    agent = replace(agent, tools=lambda: search_tools(Searcher([Document("1", "Ulm lies on the Danube.")])))
    request = asyncio.run(prepare_one_shot(make_request(row, agent.protocol), agent))
    (message,) = request.request.messages
    assert "\n\nDoc 1: Ulm lies on the Danube.\n\nQuestion: Who?" in message["content"]


def test_there_is_no_fine_tuning_data_of_such_turns():
    with pytest.raises(RunError, match="agentic_rag_tools: traces whose turns"):
        _load_protocol("agentic_rag_tools", None)
    row = SftRow("1", "Who?", "agentic_rag_tools", "turn", (), (Piece("x", True, True),))
    with pytest.raises(DataError, match="use one without `turns: chat`"):
        protocol_of_rows([row], None)


@pytest.mark.slow  # a tokenizer from disk, two servers
def test_an_evaluation_with_paths_votes_in_the_turns_of_the_template(tmp_path):
    tokenizer_with("plain").save_pretrained(tmp_path / "tokenizer")
    golds = {f"Which river flows through town {n}?": f"River {n}" for n in range(6)}
    data = tmp_path / "questions.jsonl"
    data.write_text("\n".join(json.dumps({"question": q, "answer": gold}) for q, gold in golds.items()))

    async def play(policy):
        given = EvalArguments(
            questions=[data], out=tmp_path / "run", model="policy", base_url=policy.url,
            retriever_url=policy.url, tokenizer=str(tmp_path / "tokenizer"),
            protocol="agentic_rag_tools", temperature=0.7,
            overrides=["rag_r1.agent.paths=3"],
        )  # fmt: skip
        ready = prepare(given, {})
        async with open_session(given, ready, policy.url, "policy", {}) as run:
            asks = [make_request(row, ready.config.protocol, temperature=0.7) for row in ready.questions.rows]
            await asyncio.gather(*map(run.runner.play, asks))
            return list(run.folder.records([ask.id for ask in asks]))

    with Policy(tokenizer_with("plain"), golds, lambda *request: request[-1] % 2 == 0) as policy:
        records = asyncio.run(play(policy))
    assert len(policy.bodies) == 18 and all('"name": "search"' in prompt_of(body) for body in policy.bodies)
    answers = [[path["answer"] for path in record["paths"]] for record in records]
    assert [record["answer"] for record in records] == [max(three, key=three.count) for three in answers]
    assert any(len(set(three)) == 2 for three in answers)
    assert [record["usage"]["requests"] for record in records] == [3] * 6


def prompt_of(body):
    return tokenizer_with("plain").decode(body["prompt"])
