"""`rag-r1 retriever data` with the embedded policy and the retrieval server over its world."""

from __future__ import annotations

import json

import pytest

from rag_r1.data.rows import write_rows
from rag_r1.demo.eval_arguments import demo_eval_arguments
from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import demo_protocol, make_questions, make_world, to_row
from rag_r1.retriever.data import command
from rag_r1.retriever.records import TrainingRow, read_records
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process
from tests.fakes.scored_world import lines, texts_of

pytestmark = pytest.mark.slow

DIALECT, QUESTIONS = "rag_r1_sq", 12


def test_the_embedded_policy_goes_on_with_each_passage_and_those_with_the_answer_help(tmp_path):
    from tests.retriever.torch_policy import TorchPolicy

    world = make_world(5, "test", people=60, places=20)
    questions = make_questions(world, QUESTIONS, 5, kinds=("one_hop",))
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in world.passages))
    protocol = demo_protocol(DIALECT)
    write_rows(tmp_path / "q.parquet", (to_row(q, i, "test", protocol) for i, q in enumerate(questions)))
    index = build_index(tmp_path / "corpus.jsonl", tmp_path / "index", "--backend", "bm25")
    out = tmp_path / "out"
    with retrieval_process(index, tmp_path / "retrieval.log") as url, TorchPolicy(DIALECT) as policy:
        served = ["--base-url", policy.url, "--tokenizer", str(policy_path(DIALECT)), "--in-flight", "16"]
        # The demo's policy was trained with two passages a search, and can only read two.
        words = [*served, "--beside", "1", "--negatives", "2"]
        args = demo_eval_arguments(policy_path(DIALECT), tmp_path / "q.parquet", DIALECT, url, out)
        assert command.main([*args.to_argv(), *words]) == 0
        prompts = [prompt for prompt in policy.prompts if len(prompt) > 1]
    output = json.loads((out / "summary.json").read_text())
    assert output["correctness"]["searches"] == output["candidates"]["searches"] > QUESTIONS // 2
    assert output["candidates"]["failed"] == 0

    texts, golds = texts_of(out / "passages.jsonl"), {q.id: q.gold for q in questions}
    scores: dict[bool, list[float]] = {True: [], False: []}
    for record in lines(out / "correctness.jsonl"):
        for name, score in record["docid_score"].items():
            scores[golds[record["id"]] in texts[name]].append(score["metric_score"]["em"])
    mean = {held: sum(values) / len(values) for held, values in scores.items()}
    assert mean[True] > mean[False] + 0.2, mean
    rows = list(read_records(TrainingRow, out / "train.jsonl"))
    assert rows and all(row.scores[0].em == 1 for row in rows)
    assert all(golds[row.query_id] in texts[row.passage_ids[0]] for row in rows)

    # Each continuation begins with the prompt and the very tokens that the policy sampled in the trajectory.
    tape = lines(out / "trajectories" / "journal" / "exchanges.ndjson")
    sampled = {line["ask"]: line["answer"]["ids"] for line in tape if line["turn"] == 0}
    begins = [ids for ids in sampled.values() if sum(_holds(prompt, ids) for prompt in prompts) > 1]
    assert len(begins) > QUESTIONS // 2


def _holds(prompt: list[int], part: list[int]) -> bool:
    return any(prompt[i : i + len(part)] == part for i in range(len(prompt) - len(part) + 1))
