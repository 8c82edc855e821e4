"""`rag-r1 index ...` as a user runs it, where only the packages of an extra are installed."""

from __future__ import annotations

import re
import signal
import socket
import subprocess

import httpx
import pytest

from retrieval_server import commands
from retrieval_server.extras import SERVER, WORDS
from tests.wheel.wheel_environments import Environment, names

pytestmark = pytest.mark.slow  # each starts processes in an environment of their own
COMMANDS = sorted(commands.COMMANDS)
MISSING = 'which {} not installed: pip install "rag-r1[{}]"'


@pytest.fixture(scope="module")
def base(wheel, tmp_path_factory) -> Environment:
    """What `pip install rag-r1` brings."""
    return Environment.bare(tmp_path_factory.mktemp("base"), wheel)


@pytest.fixture(scope="module")
def bm25_only(wheel, tmp_path_factory) -> Environment:
    """What `pip install "rag-r1[bm25]"` brings."""
    return Environment.bare(tmp_path_factory.mktemp("bm25"), wheel, "bm25")


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence with which a command has refused."""
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    (line,) = done.stderr.splitlines()
    return line


def test_bm25_brings_the_server_and_neither_torch_nor_faiss(bm25_only):
    brought = names(bm25_only.required("bm25"))
    assert {"bm25s", "fastapi", "uvicorn", "prometheus-client", "pystemmer"} <= brought
    assert brought < names(bm25_only.required("retrieval"))
    for module in ("torch", "faiss", "transformers", "sentence_transformers"):
        done = bm25_only.run("python", "-c", f"import {module}")
        assert done.returncode == 1 and f"No module named '{module}'" in done.stderr
    assert bm25_only.run("python", "-c", f"import {', '.join([*SERVER, *WORDS])}").returncode == 0


def test_an_index_is_built_served_and_asked_where_torch_and_faiss_are_missing(bm25_only, corpus, tmp_path):
    out = tmp_path / "my index"
    built = bm25_only.run("rag-r1", "index", "build", "--corpus", corpus, "--out", out, "--backend", "bm25")
    assert built.returncode == 0, built.stderr
    assert built.stdout.splitlines()[-1] == f"rag-r1 index serve --index '{out}'"

    words = bm25_only.command("rag-r1", "index", "serve", "--index", out, "--port", "0", "--topk", "1")
    with subprocess.Popen(words, env=bm25_only.variables(), stdout=subprocess.PIPE, text=True) as server:
        try:
            lines = iter(server.stdout.readline, "")
            url = next(line.split()[-1] for line in lines if line.startswith("serving on "))
            answer = httpx.post(url + "/retrieve", json={"queries": ["Ulm", "zzz"]}).json()
            assert [[hit["id"] for hit in hits] for hits in answer["result"]] == [["town-0"], []]
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    assert server.returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("build", "--backend", "dense", "--encoder", "minilm"),
        ("import", "--embeddings", "vectors.npy", "--encoder", "minilm"),
        ("build", "merge", "--parts", "parts"),
        ("build", "encode", "--parts", "parts", "--part", "1/1", "--encoder", "minilm"),
    ],
    ids=["build", "import", "merge", "encode"],
)
def test_a_dense_index_is_refused_there_with_the_pip_line(bm25_only, corpus, tmp_path, words):
    if "encode" not in words:
        words += ("--out", tmp_path / "index")
    if "--parts" not in words:
        words += ("--corpus", corpus)
    done = bm25_only.run("rag-r1", "index", *words, cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert ': pip install "rag-r1[retrieval]"\n' in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_serving_splitting_or_reranking_with_vectors_is_refused_there_with_the_pip_line(
    bm25_only, bm25_index, dense_index, tmp_path
):
    serving = refusal(bm25_only.run("rag-r1", "index", "serve", "--index", dense_index))
    needs = "A dense index needs faiss, sentence_transformers and torch"
    assert serving == f"error: {needs}, {MISSING.format('are', 'retrieval')}"
    words = ("index", "split", "--index", dense_index, "--shards", "2", "--out", tmp_path / "shards")
    assert MISSING.format("is", "retrieval") in refusal(bm25_only.run("rag-r1", *words))
    reranking = bm25_only.run("rag-r1", "index", "serve", "--index", bm25_index, "--rerank", "cross/encoder")
    assert MISSING.format("are", "retrieval") in refusal(reranking)


@pytest.mark.parametrize("backend", ["ray", "lucene"])
def test_other_extras_are_named_with_their_pip_line(bm25_only, bm25_index, corpus, tmp_path, backend):
    if backend == "ray":
        message = refusal(bm25_only.run("rag-r1", "index", "serve", "--index", bm25_index, "--serve", "ray"))
    else:
        words = ("--corpus", corpus, "--out", tmp_path / "index", "--backend", "lucene")
        message = refusal(bm25_only.run("rag-r1", "index", "build", *words))
    assert f'pip install "rag-r1[{backend}]"' in message


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_help_works_from_the_base_dependencies(base, command, tmp_path):
    done = base.run("rag-r1", "index", *filter(None, [command]), "--help", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith(f"usage: {' '.join(filter(None, ['rag-r1 index', command]))} ")
    assert not re.search(r"\w\.(py|md|sh)\b", done.stdout), "only a clone has such a file"
    module = base.run("python", "-m", "retrieval_server", *filter(None, [command]), "--help", cwd=tmp_path)
    assert module.stdout.startswith("usage: python -m retrieval_server ") and module.returncode == 0


def test_without_the_extra_building_and_serving_name_it(base, corpus, bm25_index, tmp_path):
    words = ("--corpus", corpus, "--out", tmp_path / "index", "--backend", "bm25")
    assert MISSING.format("is", "bm25") in refusal(base.run("rag-r1", "index", "build", *words))
    assert MISSING.format("are", "bm25") in refusal(
        base.run("rag-r1", "index", "serve", "--index", bm25_index)
    )
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_named_with_the_remedy(bm25_only, bm25_index):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = bm25_only.run("rag-r1", "index", "serve", "--index", bm25_index, "--port", str(port))
    assert "loading" not in done.stdout
    message = refusal(done)
    assert f"port {port} of 127.0.0.1 is in use" in message and "--port" in message
