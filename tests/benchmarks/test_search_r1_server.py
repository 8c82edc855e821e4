"""The script that starts Search-R1's server: a stand-in of it here, and a real checkout if there is one."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

from benchmarks import search_r1_server
from retrieval_server.errors import UserError

from .conftest import TOWNS, run_script, server_process

#: A server with the command line and the wire of Search-R1's, and with what the script changes around it.
STAND_IN = """
import argparse
import json

import torch
import uvicorn
from fastapi import FastAPI, Request
from tqdm import tqdm

parser = argparse.ArgumentParser()
for name in ("index_path", "corpus_path", "retriever_name", "retriever_model"):
    parser.add_argument("--" + name)
parser.add_argument("--topk", type=int)
given = parser.parse_args()
rows = [json.loads(line) for line in open(given.corpus_path, encoding="utf-8")]
layer = torch.nn.Linear(2, 2).cuda().half()
app = FastAPI()


@app.post("/retrieve")
async def retrieve(request: Request):
    body = await request.json()
    places = [row for _ in tqdm(range(1), desc="a bar") for row in rows][: body.get("topk") or given.topk]
    about = vars(given) | {"dtype": str(layer.weight.dtype), "moved": str(torch.ones(1).cuda().device)}
    return {"result": [[{"document": row | about, "score": 1.0} for row in places] for _ in body["queries"]]}


uvicorn.run(app, host="0.0.0.0", port=8000)
"""


def server(checkout: Path, index: Path):
    flags = ["--checkout", checkout, "--index", index, "--topk", 2]
    return server_process("benchmarks/search_r1_server.py", *flags, path="/docs")


def ask(url: str, queries: list[str], **more) -> list[list[dict]]:
    body = {"queries": queries, "return_scores": True, **more}
    return httpx.post(f"{url}/retrieve", json=body, timeout=60).json()["result"]


@pytest.mark.slow
def test_the_file_of_the_checkout_is_run_with_the_indexs_parts_on_the_processor(minilm_index, tmp_path):
    file = tmp_path / "Search-R1" / "search_r1" / "search" / "retrieval_server.py"
    file.parent.mkdir(parents=True)
    file.write_text(STAND_IN)
    with server(tmp_path / "Search-R1", minilm_index) as served:
        ((first, second),) = ask(served.url, ["Where is Ulm?"])
        assert len(ask(served.url, ["a", "b"], topk=5)[1]) == 5
    assert [hit["document"]["contents"].split('"')[1] for hit in (first, second)] == TOWNS[:2]
    settings = first["document"]
    assert (settings["dtype"], settings["moved"], settings["retriever_name"]) == (
        "torch.float32",
        "cpu",
        "dense",
    )
    assert (
        Path(settings["index_path"]) == minilm_index / "faiss.index"
        and (Path(settings["retriever_model"])).is_dir()
    )
    assert not Path(settings["corpus_path"]).exists(), "the passages that were written out are removed"
    served.log.seek(0)
    assert "a bar" not in served.log.read()


@pytest.mark.slow
def test_search_r1s_own_server_finds_the_same(minilm_index):
    checkout = os.environ.get("SEARCH_R1_CHECKOUT")
    if not checkout:
        pytest.skip("no Search-R1 to compare with: set SEARCH_R1_CHECKOUT to a clone of it")
    from retrieval_server.search.index_source import IndexSource

    queries = [f"Where is {town}?" for town in TOWNS]
    with server(Path(checkout), minilm_index) as served:
        theirs = [[hit["document"]["id"] for hit in hits] for hits in ask(served.url, queries, topk=3)]
    ours = IndexSource.open(minilm_index, device="cpu").search(queries, 3)
    assert theirs == [[hit.passage.id for hit in hits] for hits in ours]


BGE = "Represent this sentence for searching relevant passages: "


@pytest.mark.parametrize("prefix, name", [("query: ", "e5"), (BGE, "bge"), ("", "dense")])
def test_its_name_for_a_prefix_is_given(prefix, name):
    assert search_r1_server.retriever_name(prefix) == name


def test_a_prefix_that_the_server_does_not_know_is_refused():
    with pytest.raises(UserError, match="knows no prefix 'search: '"):
        search_r1_server.retriever_name("search: ")


def test_a_gpu_is_not_replaced_by_the_processor_unseen(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TQDM_DISABLE", "1")  # which the script sets
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    flags = ["--checkout", str(tmp_path), "--index", str(tmp_path), "--device", "cuda"]
    assert search_r1_server.main(flags) == 2
    assert "--device cuda: torch sees no GPU" in capsys.readouterr().err


def test_a_folder_without_the_server_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(AssertionError, match="(?s)status 2: .*no manifest.json") as refusal:
        run_script("benchmarks/search_r1_server.py", "--checkout", tmp_path, "--index", tmp_path)
    assert "Traceback" not in str(refusal.value)
