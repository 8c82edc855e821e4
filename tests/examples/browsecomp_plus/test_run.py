"""BrowseComp-Plus: its searcher over the real retrieval server, and runs that its own script evaluates.

The benchmark's repository is not part of this one. With its checkout in $BROWSECOMP_PLUS, its own classes and
its own evaluation script are run, on a set of the same form; its judge is a stub that compares strings.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from examples.browsecomp_plus import run
from examples.browsecomp_plus.run import (
    RetrievalServerSearcher,
    main,
    query_id_of,
    to_benchmark_run,
    write_runs,
)
from rag_r1.agent import Trajectory, Turn
from rag_r1.io.errors import DataError
from rag_r1.protocols import Document
from rag_r1.runs.errors import RunError
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process

CHECKOUT = os.environ.get("BROWSECOMP_PLUS")
needs_checkout = pytest.mark.skipif(
    CHECKOUT is None, reason="left out: $BROWSECOMP_PLUS names no checkout of texttron/BrowseComp-Plus"
)
TOWNS = {"101": ("Ulm", "Donau"), "102": ("Trier", "Mosel"), "103": ("Jena", "Saale")}
CORPUS = [
    {"id": docid, "contents": f'"{town}"\n{town} lies on the {river}.'}
    for docid, (town, river) in TOWNS.items()
]
#: Query id -> question, answer, and the document that has it.
QUESTIONS = {
    str(number): (f"Which river is {town} on?", river, docid)
    for number, (docid, (town, river)) in enumerate(TOWNS.items(), 7)
}


def trajectory(key: str, answer: str | None, docid: str) -> Trajectory:
    documents = [Document(docid, "some text </search>"), Document("", "no id")]
    turns = [Turn.searched("<think>hm</think><search>x</search>", ["x"], [documents])]
    if answer is not None:
        turns.append(Turn(f"<answer>{answer}</answer>", "answer"))
    status = "turn_limit" if answer is None else "answered"
    return Trajectory(f"bcp/test/{key}", QUESTIONS[key][0], "rag_r1_mq", turns, answer, status)


#: Right, wrong, and without an answer.
RUNS = [trajectory("7", "Donau", "101"), trajectory("8", "Rhine", "101"), trajectory("9", None, "103")]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CORPUS))
    build_index(folder / "corpus.jsonl", folder / "index", "--backend", "bm25")
    with retrieval_process(folder / "index", folder / "log") as address:
        yield address


def searcher_of(url: str, kind: type = RetrievalServerSearcher, *arguments: str) -> RetrievalServerSearcher:
    parser = argparse.ArgumentParser()
    kind.parse_args(parser)
    return kind(parser.parse_args(["--retriever-url", url, *arguments]))


@pytest.mark.slow
def test_an_agent_of_the_benchmark_searches_and_opens_documents(url):
    searcher = searcher_of(url)
    [hit, *_] = searcher.search("Mosel", 2)
    assert hit["docid"] == "102" and hit["text"] == CORPUS[1]["contents"] and hit["score"] > 0
    assert searcher.get_document("103") == {"docid": "103", "text": CORPUS[2]["contents"]}
    assert searcher.get_document("104") is None
    assert searcher.search_type == "bm25"


@pytest.mark.slow
def test_what_the_server_refuses_is_told_with_its_reason(url):
    with pytest.raises(RunError, match="unknown_index"):
        searcher_of(url, RetrievalServerSearcher, "--retriever-index", "no-such-index").search("x")


def test_where_no_server_answers_the_address_is_named():
    with pytest.raises(RunError, match="127.0.0.1:9/ready"):
        searcher_of("http://127.0.0.1:9")


def test_a_run_holds_the_calls_the_shown_documents_and_the_answer():
    run = to_benchmark_run(RUNS[0], "7", "mine")
    assert run["query_id"] == "7" and run["status"] == "completed"
    assert run["tool_call_counts"] == {"search": 1} and run["retrieved_docids"] == ["101"]
    assert [step["type"] for step in run["result"]] == ["reasoning", "tool_call", "reasoning", "output_text"]
    assert run["result"][1]["arguments"] == {"query": "x"}
    assert run["result"][-1]["output"] == "Exact Answer: Donau"


def test_a_run_without_an_answer_is_incomplete():
    run = to_benchmark_run(RUNS[2], "9")
    assert run["status"] == "incomplete" and run["result"][-1]["type"] != "output_text"


@pytest.mark.parametrize("record_id", ["bcp/test/7", "bcp/test/7#0", "7"])
def test_the_benchmarks_id_is_found_in_a_records(record_id):
    assert query_id_of(record_id) == "7"


def test_each_question_may_occur_once(tmp_path):
    twice = [run.to_dict() for run in (RUNS[0], RUNS[0])]
    with pytest.raises(DataError, match="second record"):
        write_runs(twice, tmp_path)


def test_no_id_leads_out_of_the_folder(tmp_path):
    record = RUNS[0].to_dict() | {"id": "bcp/test/..\\..\\x"}
    write_runs([record], tmp_path / "runs")
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["runs"]


def test_records_that_are_none_are_named(tmp_path, capsys):
    (tmp_path / "r.jsonl").write_text("{}\n")
    assert main(["--records", str(tmp_path), "--out", str(tmp_path / "runs")]) == 1
    assert "no question's id" in capsys.readouterr().err


@needs_checkout
@pytest.mark.slow
def test_the_benchmarks_own_base_class_accepts_the_searcher(url, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(CHECKOUT) / "searcher" / "searchers"))
    from base import BaseSearcher

    class CustomSearcher(RetrievalServerSearcher, BaseSearcher):
        pass

    assert searcher_of(url, CustomSearcher).search("Donau", 1)[0]["docid"] == "101"


#: A module `vllm` for the benchmark's script: the judge says yes if the answer is in the response.
STUB_VLLM = """
import re

class SamplingParams:
    def __init__(self, **_): pass

class _Out:
    def __init__(self, text): self.outputs = [type("T", (), {"text": text})()]

class LLM:
    def __init__(self, **_): pass
    def chat(self, messages, *_, **__):
        return [_Out(self.judge(m[0]["content"])) for m in messages]
    def judge(self, prompt):
        response = re.search(r"\\[response\\]: (.*?)\\n\\n\\[correct_answer\\]", prompt, re.S)[1]
        right = re.search(r"\\[correct_answer\\]: (.*?)\\n", prompt)[1]
        verdict = "yes" if right in response else "no"
        return f"extracted_final_answer: x\\nreasoning: y\\ncorrect: {verdict}\\nconfidence: 90"
"""


@needs_checkout
@pytest.mark.slow
def test_the_benchmarks_own_script_evaluates_our_runs(tmp_path):
    records = tmp_path / "records.jsonl"
    records.write_text("".join(json.dumps(run.to_dict()) + "\n" for run in RUNS))
    runs = tmp_path / "runs" / "mine"
    assert main(["--records", str(records), "--out", str(runs), "--model", "mine"]) == 0
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "vllm.py").write_text(STUB_VLLM)
    truth, qrels = tmp_path / "truth.jsonl", tmp_path / "qrels.txt"
    rows = [{"query_id": key, "query": q, "answer": answer} for key, (q, answer, _) in QUESTIONS.items()]
    truth.write_text("".join(json.dumps(row) + "\n" for row in rows))
    qrels.write_text("".join(f"{key} Q0 {docid} 1\n" for key, (_, _, docid) in QUESTIONS.items()))
    script = Path(CHECKOUT) / "scripts_evaluation" / "evaluate_run.py"
    done = subprocess.run(
        [
            *(sys.executable, str(script), "--input_dir", str(runs), "--ground_truth", str(truth)),
            *("--eval_dir", str(tmp_path / "evals"), "--qrel_evidence", str(qrels)),
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "stub")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    [summary] = (tmp_path / "evals").rglob("evaluation_summary.json")
    figures = json.loads(summary.read_text())
    assert figures["LLM"] == "mine" and figures["Accuracy (%)"] == pytest.approx(33.33, abs=0.01)
    # Question 8 found nothing of its evidence, the others all of it.
    assert figures["Recall (%)"] == pytest.approx(66.67, abs=0.01)
    assert figures["avg_tool_stats"] == {"search": 1.0}
    correct = {question["query_id"]: question["correct"] for question in figures["per_query_metrics"]}
    assert correct == {"7": True, "8": False, "9": False}


@pytest.fixture
def client(request, monkeypatch):
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text=request.param))
    client = httpx.Client(base_url="http://retriever", transport=transport)
    monkeypatch.setattr(run, "bounded_http_client", lambda *_: client)
    return client


@pytest.mark.parametrize("client", ["[]", '"ready"', "null", "not JSON", '{"indexes": []}'], indirect=True)
def test_a_server_that_answers_no_status_is_no_retrieval_server(client):
    with pytest.raises(RunError, match="no retrieval server answers at http://retriever/ready"):
        searcher_of("http://retriever:1")
    assert client.is_closed


@pytest.mark.parametrize("client", ["{}", '{"result": "x"}', '{"result": [[1]]}'], indirect=True)
def test_an_answer_without_documents_is_told_as_that_of_another_server(client):
    searcher = searcher_of("http://retriever:1")
    for ask, route in ((searcher.search, "retrieve"), (searcher.get_document, "documents")):
        with pytest.raises(RunError, match=f"http://retriever/{route}: JSON of another shape"):
            ask("7")
