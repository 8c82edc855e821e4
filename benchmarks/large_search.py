"""The measured processes of benchmarks/large_preset.py: search in an index, in its shards, and its server.

`search` and `serve` return what is printed as a line of JSON. There is no command line. Linux only.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

#: What is searched, and how: the index in states of the page cache, with numbers of cells and of candidates,
#: and its shards.
WAYS = ("cold", "rows cold", "cells", "candidates", "shards")
K = 10
COLD = 100  # first questions of a fresh process
CELLS = (16, 32, 64, 128, 256, 512)
CANDIDATES = (100, 200, 400, 800)


def drop(path: Path) -> None:
    """Drop a file, or a folder's files, from the page cache, as far as no process maps them."""
    for file in path.rglob("*") if path.is_dir() else (path,):
        if file.is_file():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_through(file: Path) -> None:
    """Read a file into the page cache."""
    with file.open("rb") as stream:
        while stream.read(2**24):
            pass


def percentiles(seconds: list[float]) -> dict[str, float]:
    """The p50 and the p95 of these seconds, in milliseconds."""
    return {f"p{share}": 1000 * float(np.percentile(seconds, share)) for share in (50, 95)}


def recall(rows: list[list[int]], exact: np.ndarray) -> float:
    """The share of exact search's rows that was found."""
    pairs = zip(rows, exact.tolist(), strict=True)
    return sum(len(set(ours) & set(best)) for ours, best in pairs) / exact.size


def one_by_one(
    find: Callable[[np.ndarray], list[int]], questions: np.ndarray, before: Callable[[], object] = int
) -> tuple[list[list[int]], list[float]]:
    """Rows and seconds of each question; `before` is called before each, and not timed."""
    rows, took = [], []
    for question in questions:
        before()
        began = time.perf_counter()
        rows.append(find(question[None]))
        took.append(time.perf_counter() - began)
    return rows, took


def search(index: Path, shards: Path, exact: Path, way: str) -> dict:
    """Search for the questions in `exact` one by one, without an encoder and without texts."""
    from benchmarks.index_presets import Opened, make_files, resident
    from benchmarks.random_vectors import RandomVectors
    from retrieval_server.encode.malloc import trim_heap
    from retrieval_server.folder.manifest import FAISS_INDEX, ROWS, read_manifest

    with np.load(exact) as kept:
        questions, rows = kept["queries"], kept["rows"]
    if way == "shards":
        return _search_shards(shards, questions, rows)
    if "cold" in way:
        drop(index)
    section = read_manifest(index).dense
    assert section is not None and section.rescoring is not None and section.search is not None
    with TemporaryDirectory() as tiny:  # so that what a process needs in any case is there
        make_files(section.preset, RandomVectors(1000, section.encoder.dimension), Path(tiny))
        warm = Opened(Path(tiny), section.preset, section.encoder.dimension, mapped=True)
        for question in questions:
            warm.find(question[None], K, 1, section.rescoring.candidates)
        warm.find(questions[:1], K, warm.cells, section.rescoring.candidates)
        warm.stored.release()
    trim_heap()
    before = resident()
    began = time.perf_counter()
    opened = Opened(index, section.preset, section.encoder.dimension, mapped=True)
    seconds = time.perf_counter() - began

    chosen, usual = section.search.nprobe, section.rescoring.candidates

    def find(cells: int, candidates: int) -> Callable[[np.ndarray], list[int]]:
        return lambda question: opened.find(question, K, cells, candidates)[0]

    tried = {
        "cells": [(cells, usual) for cells in CELLS if cells <= opened.cells],
        "candidates": [(chosen, candidates) for candidates in CANDIDATES],
    }
    if way in tried:
        lines = []
        for cells, candidates in tried[way]:
            results, took = one_by_one(find(cells, candidates), questions)
            line = {"cells": cells, "candidates": candidates, "recall": recall(results, rows)}
            lines.append(line | percentiles(took))
        return {way: lines}

    def drop_rows() -> None:
        opened.stored.release()
        drop(index / ROWS)

    as_built = find(chosen, usual)
    figures = {"opened": seconds, "cells": chosen, "candidates": usual}
    if way == "rows cold":
        read_through(index / FAISS_INDEX)
        results, took = one_by_one(as_built, questions, drop_rows)
        return figures | {"recall": recall(results, rows), "all": percentiles(took)}
    results, first = one_by_one(as_built, questions[:COLD])
    read_through(index / FAISS_INDEX)
    more, new = one_by_one(as_built, questions[COLD:])
    figures |= {"recall": recall(results + more, rows), "first": percentiles(first)}
    if new:
        figures["new"] = percentiles(new)
    _, again = one_by_one(as_built, questions)
    opened.find(questions[:1], K, opened.cells, usual)  # so that every page of the index is resident
    opened.stored.release()
    trim_heap()
    return figures | {"again": percentiles(again), "resident": resident() - before}


def _search_shards(folder: Path, questions: np.ndarray, rows: np.ndarray) -> dict:
    """All shards in this process, one after the other, their hits merged as a cluster does."""
    from retrieval_server.cluster.merge import merge
    from retrieval_server.folder.shard_set import read_shards
    from retrieval_server.search.index_source import IndexSource

    shards = [IndexSource.open(path, encodes=False) for path, _ in read_shards(folder)]

    def find(question: np.ndarray) -> list[int]:
        hits = merge([shard.find_unrounded(question, [K])[0] for shard in shards], K)
        return [int(hit.passage.id) for hit in hits]

    results, took = one_by_one(find, questions)
    return {"shards": len(shards), "recall": recall(results, rows), "all": percentiles(took)}


def serve(index: Path, questions: list[str], encoder: Path | None = None) -> dict:
    """Start the server and ask it questions one by one. Its index, and the `encoder` if that is given, are
    not in the page cache at first."""
    from benchmarks.large_index import resident
    from benchmarks.measured_steps import ROOT, ending_with, processor_seconds

    random.Random(0).shuffle(questions)
    for files in filter(None, (index, encoder)):
        drop(files)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    script = ROOT / "retrieval_server" / "start_retrieval.py"
    command = [sys.executable, script, "--index", index, "--port", port, "--cache-size", 0]
    began = time.perf_counter()
    process = subprocess.Popen(
        [*map(str, command)], cwd=ROOT, stdout=subprocess.DEVNULL, preexec_fn=ending_with(os.getpid())
    )
    try:
        while (status := _ready(url)) is None:
            if process.poll() is not None:
                raise SystemExit("error: the server ended")
            time.sleep(0.05)
        figures = {"ready": time.perf_counter() - began, "processor": processor_seconds(process.pid)}
        figures["first"] = percentiles([_ask(url, question) for question in questions[:COLD]])
        while status["paged_in"] not in (None, 1.0):
            time.sleep(0.2)
            status = _ready(url) or status
        figures["read ahead"] = status["paged_in"]
        if new := [_ask(url, question) for question in questions[COLD:]]:
            figures["new"] = percentiles(new)
        figures["again"] = percentiles([_ask(url, question) for question in questions])
        whole, mapped = resident(process.pid, "faiss.index")
        return figures | {"resident": whole, "index resident": mapped}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _ready(url: str) -> dict | None:
    """The answer of /ready; None while the server is not."""
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=60) as answer:
            return json.load(answer)
    except OSError:
        return None


def _ask(url: str, question: str) -> float:
    """Ask the server; returns the seconds until the answer has come."""
    body = json.dumps({"queries": [question], "topk": K}).encode()
    request = urllib.request.Request(f"{url}/retrieve", body, {"content-type": "application/json"})
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as answer:
        json.load(answer)
    return time.perf_counter() - began
