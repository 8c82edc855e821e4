"""Runs one stage of dense retrieval in its own process: the encoder, our search, or FAISS's own search.

    python benchmarks/retrieval_stages.py --index DIR --stage encode --questions q.json --vectors v.npy
    python benchmarks/retrieval_stages.py --index DIR --stage search --questions q.json --vectors v.npy

benchmarks/retrieval_server.py starts the stages for its ceilings. In one process each of the two libraries
would load its own OpenMP runtime, and the idle threads of one would slow down the other, so that a pipeline
in one process would not be an upper bound. The stage `faiss`, for exact indexes only, searches a bare FAISS
index with FAISS's defaults.

A stage first encodes or searches everything once, and prints "ready". For each line that it then reads from
standard input it does so again, in batches of `--batch` in the given order, and prints the seconds of each
batch as a line of JSON. The encoder writes its vectors to `--vectors`, where the searches read them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]


#: The function that processes a batch, and all batches: lists of questions, or arrays (queries, dimension).
Stage = tuple[Callable[[Any], object], list[Any]]


def encode_stage(args: argparse.Namespace) -> Stage:
    """Return the function that encodes a batch, and the batches of questions; writes `--vectors`."""
    from retrieval_server.encode.cpu_settings import set_mkl_reproducible

    set_mkl_reproducible()

    from retrieval_server.encode.encoder import Encoder
    from retrieval_server.folder.manifest import read_manifest

    model = Encoder.open(read_manifest(args.index).dense.encoder, device=args.device)
    questions = json.loads(args.questions.read_text(encoding="utf-8"))
    np.save(args.vectors, model.encode_queries(questions))
    return model.encode_queries, list(batches(questions, args.batch))


def search_stage(args: argparse.Namespace) -> Stage:
    """Return the function that searches for a batch with our code, and the batches of vectors."""
    from retrieval_server.folder.manifest import FAISS_INDEX, read_manifest
    from retrieval_server.search.dense import DenseBackend

    manifest = read_manifest(args.index)
    backend = DenseBackend(args.index / FAISS_INDEX, manifest.dense, manifest.count, None)
    vectors = list(batches(np.load(args.vectors), args.batch))
    return (lambda batch: backend.find(batch, args.topk)), vectors


def faiss_stage(args: argparse.Namespace) -> Stage:
    """Return the function that searches for a batch with FAISS alone, and the batches of vectors."""
    import faiss

    from retrieval_server.folder.manifest import FAISS_INDEX

    index = faiss.read_index(str(args.index / FAISS_INDEX))
    return (lambda batch: index.search(batch, args.topk)), list(batches(np.load(args.vectors), args.batch))


def batches(items: Any, size: int) -> Iterator[Any]:
    """Yield the items in batches of `size`."""
    for first in range(0, len(items), size):
        yield items[first : first + size]


STAGES = {"encode": encode_stage, "search": search_stage, "faiss": faiss_stage}


def timed(process: Callable[[Any], object], all_batches: list[Any]) -> list[float]:
    """Process all batches, and return the seconds of each."""
    seconds = []
    for batch in all_batches:
        started = time.perf_counter()
        process(batch)
        seconds.append(time.perf_counter() - started)
    return seconds


def main(argv: list[str] | None = None) -> int:
    """Run a stage until standard input ends; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--index", type=Path, required=True, metavar="DIR", help="a dense index folder")
    parser.add_argument("--stage", choices=STAGES, required=True)
    parser.add_argument("--questions", type=Path, required=True, metavar="FILE", help="JSON list of strings")
    parser.add_argument("--vectors", type=Path, required=True, metavar="FILE.npy")
    parser.add_argument("--batch", type=int, default=64, help="(default %(default)s)")
    parser.add_argument("--topk", type=int, default=3, help="(default %(default)s)")
    parser.add_argument("--device", help="of the encoder (default: a GPU if torch sees one)")
    args = parser.parse_args(argv)
    stage = STAGES[args.stage](args)
    timed(*stage)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(timed(*stage)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
