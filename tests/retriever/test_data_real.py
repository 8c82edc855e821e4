"""`rag-r1 retriever data` with vLLM itself, the embedded policy, and the retrieval server over its world."""

from __future__ import annotations

import json

import pytest
from killed_runs import lines

from rag_r1.demo.evaluation import evaluation
from rag_r1.demo.policy import policy_path
from rag_r1.demo.server import build_index, retrieval_server
from rag_r1.demo.world import demo_protocol, make_questions, make_world, to_row
from rag_r1.retriever import data
from rag_r1.retriever.records import read_passages, read_training_rows
from rag_r1.rows import write_rows

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(1200)]

QUESTIONS = 12


def test_the_embedded_policy_goes_on_with_each_passage_and_those_with_the_answer_help(tmp_path, capsys):
    pytest.importorskip("vllm")
    world = make_world(5, "test", people=60, places=20)
    questions = make_questions(world, QUESTIONS, 5, kinds=("one_hop",))
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in world.passages))
    protocol = demo_protocol("rag_r1_sq")
    write_rows(tmp_path / "q.parquet", (to_row(q, i, "test", protocol) for i, q in enumerate(questions)))
    index = build_index(tmp_path / "corpus.jsonl", tmp_path / "index", "--backend", "bm25")
    out = tmp_path / "out"
    with retrieval_server(index, tmp_path / "retrieval.log") as url:
        given = evaluation(
            policy_path("rag_r1_sq"), tmp_path / "q.parquet", "rag_r1_sq", url, out, "--negatives", "2"
        )
        assert data.main(given) == 0
        whole = {path: path.read_bytes() for path in out.rglob("*.ndjson")}
        rows = (out / "train.jsonl").read_bytes()
        assert data.main(given) == 0, "the same command again"
    assert {path: path.read_bytes() for path in out.rglob("*.ndjson")} == whole, "nothing is asked twice"
    assert (out / "train.jsonl").read_bytes() == rows
    told = json.loads((out / "summary.json").read_text())
    assert told["correctness"]["searches"] == told["candidates"]["searches"] > QUESTIONS // 2
    assert told["candidates"]["failed"] == 0

    texts, golds = read_passages(out / "passages.jsonl"), {q.id: q.gold for q in questions}
    scores: dict[bool, list[float]] = {True: [], False: []}
    for record in lines(out / "correctness.jsonl"):
        for name, score in record["docid_score"].items():
            scores[golds[record["id"]] in texts[name]].append(score["metric_score"]["em"])
    mean = {held: sum(values) / len(values) for held, values in scores.items()}
    assert mean[True] > mean[False] + 0.2, mean
    for row in read_training_rows(out / "train.jsonl"):
        assert row.scores[0].em == 1 and golds[row.query_id] in texts[row.passage_ids[0]]
    # The policy was given its own tokens: what it sampled in the trajectories stands in every continuation.
    tape = lines(out / "trajectories" / "journal" / "exchanges.ndjson")
    assert all(answer["answer"]["ids"] for answer in tape)
