"""Measures the recall of each kind of index, on a corpus with questions and their supporting passages.

    python benchmarks/retrieval_recall.py --corpus corpus.jsonl.gz --questions questions.jsonl --work indexes

Questions are JSONL with {"question", "supporting_ids": [corpus id, ...]} per line. The benchmark builds BM25,
a dense index and their hybrid under --work (an existing index of the same corpus is reused), searches for
every question, and prints for each kind the mean share of a question's supporting passages among the first k.
With --lucene it also measures BM25 over Lucene, and the share of its first k that are among those of bm25s.
All settings are defaults; nothing is tuned on the questions.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def recall(results: Sequence[Sequence[str]], golds: Sequence[set[str]]) -> float:
    """Return the mean share of a question's gold ids that are among its results.

    `golds` has at least one question, and each question at least one id.
    """
    shares = [len(gold & set(ids)) / len(gold) for ids, gold in zip(results, golds, strict=True)]
    return sum(shares) / len(shares)


def corpus_hash(corpus: Path) -> str:
    """Return the hash of the passages of a corpus, as the manifest of an index has it. Raises UserError."""
    from retrieval_server.folder.corpus import CorpusReader, write_passages

    with tempfile.TemporaryDirectory() as folder:
        section, _ = write_passages(CorpusReader(corpus), Path(folder, "passages.arrow"))
    return section.sha256


def dense_name(encoder: str) -> str:
    """Return the kind of the dense index with this encoder, which is also the name of its folder."""
    return encoder.replace("/", "_")


def search(args: argparse.Namespace, kind: str, corpus: str, questions: Sequence[str]) -> list[list[str]]:
    """Return the ids of the passages that the index of a kind finds for each question, best first.

    The index is built if it is missing. Raises UserError if it is not one of the corpus with the hash
    `corpus`.
    """
    from retrieval_server.folder.manifest import read_manifest, require_equal
    from retrieval_server.indexing.builder import build_hybrid, build_index
    from retrieval_server.indexing.options import BuildOptions
    from retrieval_server.search.index_source import IndexSource

    out = args.work / kind
    if not out.exists() and kind == "hybrid":
        build_hybrid([args.work / "bm25", args.work / dense_name(args.encoder)], out)
    elif not out.exists():
        is_dense = kind == dense_name(args.encoder)
        backend, encoder = ("dense", args.encoder) if is_dense else (kind, None)
        options = BuildOptions(
            corpus=args.corpus, out=out, backend=backend, encoder=encoder, device=args.device
        )
        build_index(options)
    require_equal(f"{out}: corpus", read_manifest(out).corpus.sha256, corpus, "Empty --work.")
    source = IndexSource.open(out, device=args.device)
    try:
        return [[hit.passage.id for hit in hits] for hits in source.search(questions, max(args.k))]
    finally:
        source.close()


def main() -> int:
    """Run the benchmark and print its table; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, metavar="FILE")
    parser.add_argument("--questions", type=Path, required=True, metavar="FILE")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder for the indexes")
    parser.add_argument(
        "--encoder", default="minilm", help="encoder of the dense index (default %(default)s)"
    )
    parser.add_argument("--device", default="cpu", help="device of the encoder (default %(default)s)")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 5, 10], help="default: 1 5 10")
    parser.add_argument("--lucene", action="store_true", help='also measure Lucene; needs the extra "lucene"')
    args = parser.parse_args()

    from rag_r1.runs.markdown import print_table
    from retrieval_server.encode.cpu_settings import set_mkl_reproducible

    set_mkl_reproducible()  # must be before the imports that load MKL

    from retrieval_server.errors import UserError
    from retrieval_server.folder.manifest import read_manifest

    with args.questions.open(encoding="utf-8") as lines:
        rows = [row for row in map(json.loads, lines) if row["supporting_ids"]]
    if not rows:
        parser.error(f"--questions {args.questions}: no question has supporting_ids")
    questions, golds = [row["question"] for row in rows], [set(row["supporting_ids"]) for row in rows]
    dense = {dense_name(args.encoder): f"dense ({args.encoder}, Flat)"}
    kinds = {"bm25": "BM25 (bm25s)", **dense, "hybrid": "hybrid of both"}
    if args.lucene:
        kinds["lucene"] = "BM25 (Lucene)"
    try:
        corpus = corpus_hash(args.corpus)
        results = {kind: search(args, kind, corpus, questions) for kind in kinds}
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{len(questions)} questions, {read_manifest(args.work / 'bm25').count} passages")
    print_table(
        ["index", *(f"recall@{k}" for k in args.k)],
        (
            [name, *(f"{recall([ids[:k] for ids in results[kind]], golds):.1%}" for k in args.k)]
            for kind, name in kinds.items()
        ),
    )
    if args.lucene:
        for k in args.k:
            pairs = zip(results["lucene"], results["bm25"], strict=True)
            shared = sum(len(set(lucene[:k]) & set(bm25s[:k])) for lucene, bm25s in pairs)
            total = sum(len(bm25s[:k]) for bm25s in results["bm25"])
            print(f"first {k} of Lucene that are also bm25s's: {shared / total:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
