"""vLLM itself, asked by the completions engine (token ids in, the sampled token ids out), and by an episode
that takes turns out of its context."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from rag_r1.agent import Budget, Episode, Generation
from rag_r1.agent.tokens.codec import TokenizerCodec
from rag_r1.data.rows import write_rows
from rag_r1.demo.policy import policy_path, prompt_ids
from rag_r1.demo.world import demo_protocol, make_questions, make_world, to_row
from rag_r1.inference.vllm_server import vllm_server
from rag_r1.protocols import load_protocol
from rag_r1.sft import filter_command as command
from rag_r1.tools import search_tools
from tests.fakes.scripted_engine import Searcher
from tests.fakes.scripted_teacher import Teacher

ROOT = Path(__file__).parents[2]
#: Room for all at once: vLLM on a CPU crashes if it splits the prefill of a seeded request.
OPTIONS = ("--max-model-len", "512", "--max-num-seqs", "8", "--max-num-batched-tokens", "4096")


#: A thought takes back the last step: the demo's policy, which thinks before everything it does, then
#: takes back its searches without having learned to.
FORGETFUL = """\
extends: rag_r1_mq
name: forgetful
tags:
  think: ["<reason>", "</reason>"]
blocks:
  again: {tags: ["<think>", "</think>"], role: backtrack}
"""

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory) -> str:
    """The address of the demo's policy behind vLLM."""
    pytest.importorskip("vllm")
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    with vllm_server(policy_path("rag_r1_mq"), log, options=OPTIONS) as url:
        yield url


class Asked:
    """An engine that keeps what the server counts: the tokens of each prompt."""

    def __init__(self, url: str):
        self.url, self.prompt_tokens = url, []

    async def generate(self, context, max_tokens, stop):
        body = {"model": "policy", "prompt": list(context), "max_tokens": max_tokens, "stop": list(stop)}
        body |= {
            "temperature": 0.0,
            "include_stop_str_in_output": True,
            "return_token_ids": True,
            "logprobs": 0,
        }
        async with httpx.AsyncClient(timeout=300) as client:
            answer = (await client.post(self.url + "/completions", json=body)).json()
        self.prompt_tokens.append(answer["usage"]["prompt_tokens"])
        choice = answer["choices"][0]
        return Generation(choice["token_ids"], choice["logprobs"]["token_logprobs"])


def test_a_backtrack_shortens_what_vllm_reads(vllm: str, tmp_path: Path):
    (tmp_path / "forgetful.yaml").write_text(FORGETFUL)
    protocol = load_protocol(str(tmp_path / "forgetful.yaml"))
    from transformers import AutoTokenizer  # seconds, which a run that leaves this test out saves

    tokenizer = AutoTokenizer.from_pretrained(policy_path("rag_r1_mq"))
    (one,) = make_questions(make_world(2, "train", people=150, places=40), 1, seed=2)
    question = one.text
    prompt = prompt_ids(tokenizer, protocol, demo_protocol("rag_r1_mq").messages(question))
    limits = Budget(max_turns=5, max_turn_tokens=48, max_response_tokens=400, max_state=1e9)
    engine = Asked(vllm)
    episode = Episode(protocol, limits, engine, search_tools(Searcher()), TokenizerCodec(tokenizer))
    record = asyncio.run(episode.run("id", question, prompt))
    assert not record.failures or record.failures[0].kind == "budget"
    shorter = [i for i, turn in enumerate(record.turns[:-1]) if turn.removed]
    assert shorter, [turn.text for turn in record.turns]
    for i in shorter:
        gone = sum(
            record.turns[j].generated_tokens + record.turns[j].observed_tokens
            for j in record.turns[i].removed
        )
        assert (
            engine.prompt_tokens[i + 1] == engine.prompt_tokens[i] + record.turns[i].generated_tokens - gone
        )
        assert engine.prompt_tokens[i + 1] < engine.prompt_tokens[i]
    assert engine.prompt_tokens[shorter[0] + 1] == len(episode.ledger.rows()[1].prompt_ids)


def test_a_policy_behind_vllm_is_asked_in_token_ids(vllm: str, tmp_path: Path):
    policy, protocol = policy_path("rag_r1_mq"), demo_protocol("rag_r1_mq")
    with Teacher.of_world(seed=2, count=12, calm=True) as world:
        rows = (to_row(question, i, "train", protocol) for i, question in enumerate(world.questions))
        write_rows(tmp_path / "q.parquet", rows)
        given = {
            "--questions": tmp_path / "q.parquet",
            "--url": vllm,
            "--model": "policy",
            "--tokenizer": policy,
            "--retriever-url": world.url,
            "--prompt": ROOT / "rag_r1" / "demo" / "prompt.txt",
            "--out": tmp_path / "out",
            "--in-flight": 8,
            "--replays": 3,
            "--share": 1,
            "--max-prompt-tokens": 64,
            "--max-response-tokens": 400,
        }
        words = [str(word) for pair in given.items() for word in pair]
        words += ["rag_r1.agent.max_turn_tokens=48", "rag_r1.agent.max_turns=3"]
        assert command.main(words) == 0
        journal = tmp_path / "out" / "journal"
        tape = (journal / "exchanges.ndjson").read_bytes()
        assert command.main(words) == 0
        assert (journal / "exchanges.ndjson").read_bytes() == tape
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["settings"]["answers"] == "token ids" and summary["undecided"] == 0
    exchanges = [json.loads(line) for line in tape.splitlines()]
    by_turn = {(one["ask"], one["turn"]): one["answer"]["ids"] for one in exchanges}
    records = [json.loads(line) for line in (journal / "records.ndjson").read_bytes().splitlines()]
    from transformers import AutoTokenizer  # seconds, which a run that leaves this test out saves

    tokenizer = AutoTokenizer.from_pretrained(policy)
    assert len(records) == summary["rollouts"] >= 12
    for record in records:
        assert record["right"] is not None and record["usage"]["estimated"] == 0
        for number, turn in enumerate(record["turns"]):
            ids = by_turn[record["id"], number]
            assert len(ids) == turn["generated_tokens"]
            assert tokenizer.decode(ids, skip_special_tokens=True) == turn["text"]
    ended = [turn for record in records for turn in record["turns"] if turn["status"] == "ok"]
    assert ended and all(turn["text"].endswith(protocol.stop) for turn in ended)
