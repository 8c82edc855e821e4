"""Searches in an index, in its shards and on its server, for the measured processes of large_preset.py.

`search` and `serve` return their figures, which the process prints as a line of JSON. This module has no
command line. Linux only.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from rag_r1.system.child_processes import free_port

#: The ways of searching: the index when the page cache has nothing of it, and when it has no rows; the index
#: with several numbers of cells, and of candidates; and its shards.
WAYS = ("cold", "rows cold", "cells", "candidates", "shards")
K = 10
#: Number of questions that find a cold page cache.
COLD = 100
#: Returns the rows of the best passages for a question, an array (1, dimension).
Find = Callable[[np.ndarray], list[int]]
CELLS = (16, 32, 64, 128, 256, 512)
CANDIDATES = (100, 200, 400, 800)


def drop(path: Path) -> None:
    """Drop a file, or the files of a folder, from the page cache, unless a process maps them."""
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
    """Return the p50 and the p95 of these seconds, in milliseconds."""
    return {f"p{share}": 1000 * float(np.percentile(seconds, share)) for share in (50, 95)}


def recall(rows: list[list[int]], exact: np.ndarray) -> float:
    """Return the share of the rows of exact search that are in `rows`."""
    pairs = zip(rows, exact.tolist(), strict=True)
    return sum(len(set(ours) & set(best)) for ours, best in pairs) / exact.size


def one_by_one(
    find: Find, questions: np.ndarray, before: Callable[[], object] = lambda: None
) -> tuple[list[list[int]], list[float]]:
    """Search for one question after another; returns the rows and the seconds of each.

    `before` is called before each search, and is not timed.
    """
    rows, seconds = [], []
    for question in questions:
        before()
        started = time.perf_counter()
        rows.append(find(question[None]))
        seconds.append(time.perf_counter() - started)
    return rows, seconds


def search(index: Path, shards: Path, exact: Path, way: str) -> dict:
    """Search for the questions in `exact` one by one, without an encoder and without texts.

    `way` is one of WAYS; returns its figures: recall, p50 and p95 in milliseconds, and bytes of memory.
    """
    from benchmarks.index_presets import Opened, make_files, resident
    from benchmarks.random_vectors import RandomVectors
    from retrieval_server.encode.malloc import trim_heap
    from retrieval_server.folder.manifest import FAISS_INDEX, ROWS, read_manifest

    with np.load(exact) as arrays:
        questions, rows = arrays["queries"], arrays["rows"]
    if way == "shards":
        return _search_shards(shards, questions, rows)
    if "cold" in way:
        drop(index)
    section = read_manifest(index).dense
    assert section is not None and section.rescoring is not None and section.search is not None
    with TemporaryDirectory() as tiny:  # a tiny index first: the memory of the process itself is not counted
        make_files(section.preset, RandomVectors(1000, section.encoder.dimension), Path(tiny))
        warm = Opened(Path(tiny), section.preset, section.encoder.dimension, mapped=True)
        for question in questions:
            warm.find(question[None], K, 1, section.rescoring.candidates)
        warm.find(questions[:1], K, warm.cells, section.rescoring.candidates)
        warm.stored.release()
    trim_heap()
    before = resident()
    started = time.perf_counter()
    opened = Opened(index, section.preset, section.encoder.dimension, mapped=True)
    seconds = time.perf_counter() - started
    chosen, usual = section.search.nprobe, section.rescoring.candidates

    def find(cells: int, candidates: int) -> Find:
        return lambda question: opened.find(question, K, cells, candidates)[0]

    settings = {
        "cells": [(cells, usual) for cells in CELLS if cells <= opened.cells],
        "candidates": [(chosen, candidates) for candidates in CANDIDATES],
    }
    if way in settings:
        lines = []
        for cells, candidates in settings[way]:
            results, times = one_by_one(find(cells, candidates), questions)
            line = {"cells": cells, "candidates": candidates, "recall": recall(results, rows)}
            lines.append(line | percentiles(times))
        return {way: lines}

    def drop_rows() -> None:
        opened.stored.release()
        drop(index / ROWS)

    as_built = find(chosen, usual)
    figures = {"opened": seconds, "cells": chosen, "candidates": usual}
    if way == "rows cold":
        read_through(index / FAISS_INDEX)
        results, times = one_by_one(as_built, questions, drop_rows)
        return figures | {"recall": recall(results, rows), "all": percentiles(times)}
    results, first = one_by_one(as_built, questions[:COLD])
    read_through(index / FAISS_INDEX)
    more, new = one_by_one(as_built, questions[COLD:])
    figures |= {"recall": recall(results + more, rows), "first": percentiles(first)}
    if new:
        figures["new"] = percentiles(new)
    _, again = one_by_one(as_built, questions)
    opened.find(questions[:1], K, opened.cells, usual)  # makes every page of the index resident
    opened.stored.release()
    trim_heap()
    return figures | {"again": percentiles(again), "resident": resident() - before}


def _search_shards(folder: Path, questions: np.ndarray, rows: np.ndarray) -> dict:
    """Search all shards in this process, one after the other, and merge their hits as a cluster does."""
    from retrieval_server.cluster.merge import merge
    from retrieval_server.folder.shard_set import read_shards
    from retrieval_server.search.index_source import IndexSource

    shards = [IndexSource.open(path, encodes=False) for path, _ in read_shards(folder)]

    def find(question: np.ndarray) -> list[int]:
        hits = merge([shard.find_unrounded(question, [K])[0] for shard in shards], K)
        return [int(hit.passage.id) for hit in hits]

    results, times = one_by_one(find, questions)
    return {"shards": len(shards), "recall": recall(results, rows), "all": percentiles(times)}


def serve(index: Path, questions: list[str], encoder: Path | None = None) -> dict:
    """Start the server, send it questions one by one in random order, and return the figures.

    In the beginning its index, and the folder `encoder` if it is given, are not in the page cache. Raises
    SystemExit if the server ends.
    """
    from benchmarks.large_index import resident
    from benchmarks.measured_steps import ROOT, ending_with, processor_seconds

    questions = list(questions)
    random.Random(0).shuffle(questions)
    for folder in filter(None, (index, encoder)):
        drop(folder)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    script = ROOT / "retrieval_server" / "start_retrieval.py"
    command = [sys.executable, script, "--index", index, "--port", port, "--cache-size", 0]
    started = time.perf_counter()
    process = subprocess.Popen(
        [*map(str, command)], cwd=ROOT, stdout=subprocess.DEVNULL, preexec_fn=ending_with(os.getpid())
    )
    try:
        status = await_ready(url, process)
        figures = {"ready": time.perf_counter() - started, "processor": processor_seconds(process.pid)}
        figures["first"] = percentiles([_ask(url, question) for question in questions[:COLD]])
        while status["paged_in"] not in (None, 1.0):
            time.sleep(0.2)
            status = await_ready(url, process)
        figures["read ahead"] = status["paged_in"]
        if new := [_ask(url, question) for question in questions[COLD:]]:
            figures["new"] = percentiles(new)
        figures["again"] = percentiles([_ask(url, question) for question in questions])
        total, mapped = resident(process.pid, "faiss.index")
        return figures | {"resident": total, "index resident": mapped}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def await_ready(url: str, process: subprocess.Popen) -> dict:
    """Return the response of /ready as soon as the server is ready. Raises SystemExit if its process ends."""
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=60) as response:
                return json.load(response)
        except OSError:
            time.sleep(0.02)
    raise SystemExit(f"error: the server ended with status {process.returncode}; see above")


def _ask(url: str, question: str) -> float:
    """Send a question to the server; returns the seconds until the response is complete."""
    body = json.dumps({"queries": [question], "topk": K}).encode()
    request = urllib.request.Request(f"{url}/retrieve", body, {"content-type": "application/json"})
    started = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as response:
        json.load(response)
    return time.perf_counter() - started
