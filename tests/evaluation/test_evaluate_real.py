"""`rag-r1 eval` with vLLM itself: a folder that it serves, and 500 real questions over a real corpus."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rag_r1.agent.records import read_records
from rag_r1.data.rows import write_rows
from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import demo_protocol, to_row
from rag_r1.evaluation import command
from rag_r1.inference.vllm_server import vllm_server
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process
from tests.evaluation.command_words import PROMPT, command_words
from tests.fakes.scripted_teacher import Teacher

DATA = Path(os.environ.get("RAG_R1_DATA") or Path(__file__).parents[3] / "shared" / "data")
CORPUS, QUESTIONS = DATA / "corpus" / "hotpotqa_corpus.jsonl.gz", DATA / "qa" / "hotpotqa.jsonl"

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1200)]


def test_a_folder_is_served_evaluated_and_the_server_ended(tmp_path, capsys):
    pytest.importorskip("vllm")
    policy, protocol = policy_path("rag_r1_mq"), demo_protocol("rag_r1_mq")
    with Teacher.of_world(seed=2, count=24, calm=True) as world:
        rows = (to_row(question, i, "test", protocol) for i, question in enumerate(world.questions))
        write_rows(tmp_path / "q.parquet", rows)
        words = command_words(
            "rag_r1.agent.max_turn_tokens=48",
            data=tmp_path / "q.parquet",
            model=policy,
            prompt=PROMPT,
            retriever_url=world.url,
            out=tmp_path / "out",
            in_flight=8,
            max_prompt_tokens=64,
            max_response_tokens=400,
        )
        assert command.main(words) == 0
        printed = capsys.readouterr().out
    assert "condition agent: 24 questions" in printed and "failed (the endpoint" not in printed
    card = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert card["model"]["name"] == "rag_r1_mq" and len(card["model"]["sha256"]) == 64
    assert card["engine"]["mode"] == "tokens" and card["budget"]["max_context_tokens"] == 464
    assert "Application shutdown complete" in (tmp_path / "out" / "vllm.log").read_text()


@pytest.mark.skipif(
    not (CORPUS.is_file() and QUESTIONS.is_file()),
    reason="left out: the real HotpotQA corpus is not there (RAG_R1_DATA names its folder)",
)
def test_500_real_questions_run_through_in_token_ids_without_a_failure(tmp_path):
    pytest.importorskip("vllm")
    policy = policy_path("rag_r1_mq")
    index = build_index(CORPUS, tmp_path / "index", "--backend", "bm25")
    options = ("--max-model-len", "1000", "--max-num-seqs", "32")
    with (
        retrieval_process(index, tmp_path / "retrieval.log") as retriever,
        vllm_server(policy, tmp_path / "vllm.log", options=options) as url,
    ):
        # Most of the time goes into reading observations, so they are short.
        words = command_words(
            "rag_r1.agent.max_turn_tokens=48",
            "rag_r1.agent.max_query_observation_tokens=120",
            data=QUESTIONS,
            supporting=QUESTIONS,
            index=index,
            model="policy",
            base_url=url,
            tokenizer=policy,
            prompt=PROMPT,
            retriever_url=retriever,
            out=tmp_path / "out",
            in_flight=128,
            max_prompt_tokens=400,
            max_response_tokens=600,
        )
        assert command.main(words) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    counts = report["counts"]["all"]
    assert (counts["questions"], counts["episodes"], counts["failed"]) == (500, 500, 0)
    assert report["counts"]["questions_without_record"] == 0
    figures = {name: figure["all"] for name, figure in report["figures"].items()}
    assert figures["recall"]["questions"] == 500 and figures["em"]["questions"] == 500
    assert figures["searched"]["value"] > 0 and figures["tool_failure_rate"]["value"] == 0.0
    card = report["card"]
    assert card["engine"] == {"mode": "tokens", "options": card["engine"]["options"]}
    assert card["corpus_sha256"] and card["index"]["count"] == 9756
    tape = (tmp_path / "out" / "journal" / "exchanges.ndjson").read_bytes().splitlines()
    answers = [json.loads(line)["answer"] for line in tape]
    assert all(type(token) is int for answer in answers for token in answer["ids"])
    generated = sum(record["generated_tokens"] for record in read_records(tmp_path / "out" / "trajectories"))
    assert generated == sum(len(answer["ids"]) for answer in answers)
