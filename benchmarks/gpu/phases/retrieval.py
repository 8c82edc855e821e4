"""Measures retrieval on the GPU: the encoder, exact search with FAISS, and the whole server.

There are two encoders: MiniLM, which is a package of pip, and one with the shape of BERT base, and thus the
speed of E5 and BGE, with random weights. The search is exact, over random vectors, and its hits are compared
with those of a search on the CPU. The server has an index of the demo's corpus, and each of its clients sends
one question at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.cells import Cell
from benchmarks.gpu.made import made_once
from benchmarks.gpu.plan import Plan

if TYPE_CHECKING:
    from benchmarks.retrieval_load import Round

TITLE = "Retrieval"
_BATCHES = (1, 8, 64, 512)
#: Batches, and number of passages of the server's index, in the miniature.
_SMALL_BATCHES, _SMALL_CORPUS = (1, 8, 64), 64
_ENCODERS = ("minilm", "base")
HEAD = ("cell", "queries/s, one at a time", *map(str, _BATCHES[1:]), "GPU")


def groups(plan: Plan) -> list[list[Cell]]:
    """Return the cells, with one process for the encoders, one for the search, and one for the server."""
    batches = {"batches": list(_SMALL_BATCHES if plan.miniature else _BATCHES)}
    encoders = [
        Cell("retrieval", f"encoder-{name}-{dtype}", f"encoder {name}, {dtype}", batches)
        for name in _ENCODERS
        for dtype in (["float32"] if plan.miniature else ["float32", "float16"])
    ]
    count, dimension = (2000, 64) if plan.miniature else (1_000_000, 768)
    size = {"rows": count, "dimension": dimension, **batches}
    search = Cell("retrieval", "faiss", f"exact search in {count:,} x {dimension}", size)
    load = {"clients": 8, "seconds": 4} if plan.miniature else {"clients": 64, "seconds": 15}
    server = Cell("retrieval", "server", f"the server, {load['clients']} clients", load)
    return [encoders, [search], [server]]


def check(plan: Plan) -> None:
    """Do nothing, since the phase needs no further input."""


def measure(plan: Plan, cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """Yield the queries per second of each cell, by batch size."""
    for cell in cells:
        kind, _, encoder = cell.name.partition("-")
        if kind == "encoder":
            yield _encoder(plan, *encoder.split("-"), cell.settings["batches"])
        elif kind == "faiss":
            yield _faiss(plan, **cell.settings)
        else:
            yield _server(plan, **cell.settings)


def _encoder(plan: Plan, name: str, dtype: str, batches: Sequence[int]) -> dict[str, Any]:
    """Return the queries per second that the encoder encodes, by batch size."""
    from retrieval_server.encode.encoder import Encoder
    from retrieval_server.encode.options import EncoderOptions

    folder = "minilm" if name == "minilm" else str(_base_encoder(plan))
    options = EncoderOptions() if name == "minilm" else EncoderOptions(pooling="mean")
    encoder = Encoder.create(folder, options, None, dtype)
    texts = [f"Which of the towns along river {number} has the older bridge?" for number in range(512)]
    speeds = {
        size: _per_second(lambda size=size: encoder.encode_queries(texts[:size]), size, plan)
        for size in batches
    }
    return {"queries_per_s": speeds, "on_gpu": encoder.on_gpu, "dimension": encoder.section.dimension}


def _faiss(plan: Plan, rows: int, dimension: int, batches: Sequence[int]) -> dict[str, Any]:
    """Return the queries per second that an exact index of random vectors answers, by batch size."""
    import faiss
    import numpy as np

    from retrieval_server.search.options import OpenOptions
    from retrieval_server.search.vectors.faiss_search import GpuSearch, open_search
    from retrieval_server.search.vectors.gpu import place_on_gpus

    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((rows, dimension), dtype=np.float32)
    queries = generator.standard_normal((512, dimension), dtype=np.float32)
    index = faiss.IndexFlatIP(dimension)
    index.add(vectors)
    options = OpenOptions(gpu="auto" if plan.miniature else "on")
    search, on_cpu = open_search(index, partial(place_on_gpus, options=options)), open_search(index)
    speeds = {
        size: _per_second(lambda size=size: search.find(queries[:size], 10), size, plan) for size in batches
    }
    same = search.find(queries[:32], 10) == on_cpu.find(queries[:32], 10)
    return {"queries_per_s": speeds, "on_gpu": isinstance(search, GpuSearch), "same_hits": same}


def _server(plan: Plan, clients: int, seconds: float) -> dict[str, Any]:
    """Return queries per second, median milliseconds and errors of a server with this number of clients."""
    import torch

    from rag_r1.demo.world import demo_data
    from rag_r1.io.atomic_files import write_json_lines
    from rag_r1.tools.retrieval.local_server import build_index, retrieval_process

    folder = plan.out / "runs" / "retrieval"
    data = demo_data(1)
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "corpus.jsonl"
    write_json_lines(corpus, data.passages[: _SMALL_CORPUS if plan.miniature else None])
    build = ("--backend", "dense", "--encoder", "minilm")
    if not (folder / "index").exists():
        with made_once(folder / "index") as part:
            build_index(corpus, part, *build)
    questions = [question.text for question in data.val]
    with retrieval_process(folder / "index", folder / "server.log", "--cache-size", "0") as url:
        result = asyncio.run(_load(url, questions, clients, seconds))
    return {
        "queries_per_s": {1: result.qps},
        "median_ms": result.percentile(0.5),
        "errors": dict(result.errors),
        "on_gpu": torch.cuda.is_available(),
    }


async def _load(url: str, questions: Sequence[str], clients: int, seconds: float) -> Round:
    """Run the clients against the server, and return the round's result."""
    import aiohttp

    from benchmarks.retrieval_load import WARM_UP_S, Target, closed_loop

    async with aiohttp.ClientSession() as session:
        target = Target("server", url, session, 3)
        return await closed_loop(target, cycle(questions), clients, seconds - WARM_UP_S)


def _base_encoder(plan: Plan) -> Path:
    """Make a BERT with random weights and MiniLM's vocabulary, unless it exists; returns its folder.

    In a miniature it is a small one.
    """
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from retrieval_server.encode.model_folder import resolve_model

    folder = plan.models / "encoder"
    if not (folder / "config.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(resolve_model("minilm")[1])
        small = {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 128,
        }
        torch.manual_seed(0)
        model = BertModel(BertConfig(vocab_size=len(tokenizer), **(small if plan.miniature else {})))
        with made_once(folder) as part:
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
    return folder


def _per_second(work: Callable[[], object], queries: int, plan: Plan) -> float:
    """Return the queries per second of `work`: the best of three rounds, after a warm-up."""
    seconds = []
    for _ in range(4):
        started, count = time.perf_counter(), 0
        while not count or time.perf_counter() - started < (0.1 if plan.miniature else 1.0):
            work()
            count += 1
        seconds.append((time.perf_counter() - started) / count)
    return queries / min(seconds[1:])


def rows(cell: Cell, figures: dict[str, Any]) -> list[list[object]]:
    """Return the row of a cell."""
    speeds = {int(size): speed for size, speed in figures["queries_per_s"].items()}
    cells = [f"{speeds[size]:,.0f}" if size in speeds else "–" for size in _BATCHES]
    return [[cell.label, *cells, "yes" if figures["on_gpu"] else "no"]]
