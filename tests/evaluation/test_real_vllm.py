"""The completions engine against vLLM itself: token ids in, the sampled token ids out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripted_teacher import Teacher

from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import demo_protocol, to_row
from rag_r1.evaluation import filter as command
from rag_r1.evaluation.serving import vllm_server
from rag_r1.rows import write_rows

ROOT = Path(__file__).parents[2]
#: Room for all at once: vLLM on a CPU crashes if it splits the prefill of a seeded request.
OPTIONS = ("--max-model-len", "512", "--max-num-seqs", "8", "--max-num-batched-tokens", "4096")


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_policy_behind_vllm_is_asked_in_token_ids(tmp_path: Path):
    pytest.importorskip("vllm")
    policy, protocol = policy_path("rag_r1_mq"), demo_protocol("rag_r1_mq")
    with Teacher.of_world(seed=2, count=12, calm=True) as world:
        rows = (to_row(question, i, "train", protocol) for i, question in enumerate(world.questions))
        write_rows(tmp_path / "q.parquet", rows)
        with vllm_server(policy, tmp_path / "vllm.log", options=OPTIONS) as url:
            given = {
                "--questions": tmp_path / "q.parquet",
                "--url": url,
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
    from transformers import AutoTokenizer

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
