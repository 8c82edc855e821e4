"""Measures what compressing an index costs an agent: recall on the agent's queries, and exact match.

    python -m examples.agentic_r.run --seeds 0 1 2 --out outputs/agentic_r
    python benchmarks/compressed_answers.py --loops outputs/agentic_r --seeds 0 1 2 --out outputs/compressed

The benchmark needs finished loops of Agentic-R in miniature. From each seed it takes the last agent, which is
trained to search, and the last retriever, an encoder of 128 dimensions that was trained with it. It indexes
their corpus of 4,590 passages with that encoder: exactly, with presets, and with fewer and fewer bytes.
With each index, on a real server, the agent answers the held-out questions by greedy decoding. Nothing is
trained here.

    bytes        size of faiss.index, which is in memory, for each passage; the rows that presets read from
                 disk to score candidates have a separate column
    same first   share of the queries for which exact search returns the same first passage; the queries are
                 those that the agent sent with the exact index
    recall@3     share of exact search's first three passages that are among the first three, for the same
                 queries
    found        share of the needed passages that the agent was shown, in its run with this index
    EM, searches of the held-out questions

OUT/seed0/NAME has an index and its evaluation, and is not made again when it is finished; OUT/compressed.md
has the table.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]

from rag_r1.agent.records import read_records  # noqa: E402
from rag_r1.runs import markdown  # noqa: E402
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process  # noqa: E402

#: Name -> flags of build_index.py.
INDEXES = {
    "exact": (),
    "balanced": ("--preset", "balanced"),
    "small": ("--preset", "small"),
    "SQ8": ("--factory", "SQ8"),
    "PQ32": ("--factory", "PQ32"),
    "PQ16": ("--factory", "PQ16"),
    "PQ8": ("--factory", "PQ8"),
    "PQ4": ("--factory", "PQ4"),
    "PQ2": ("--factory", "PQ2"),
}
#: The file of an index's figures, which is written last.
_FINISHED = "index.json"
#: Queries of a request, and passages that are compared.
_BATCH, _K = 32, 3


@dataclass(frozen=True)
class Loop:
    """A finished loop."""

    #: The folder of its data.
    data: Path
    #: The folder of its last encoder.
    encoder: Path
    #: The folder of its last agent.
    agent: Path

    @classmethod
    def of(cls, folder: Path) -> Loop:
        """Return the loop in this folder. Raises SystemExit if it is not finished."""
        finished = folder / "loop" / "arm.json"
        if not finished.exists():
            raise SystemExit(f"error: {finished} is missing: run python -m examples.agentic_r.run first")
        rounds = json.loads(finished.read_text(encoding="utf-8"))["rounds"]
        encoder = folder / "loop" / f"round{rounds}" / "retriever" / "run" / "model"
        agent = folder / "loop" / f"round{rounds + 1}" / "agent" / "model"
        return cls(folder / "data", encoder.resolve(), agent.resolve())


def measure_index(loop: Loop, name: str, folder: Path, policy_url: str) -> None:
    """Build one index and let the agent answer with it, unless that is finished.

    `folder` is that of the index; the folder of the exact index is beside it, and must be finished before.
    Raises SystemExit if the evaluation fails.
    """
    if (folder / _FINISHED).exists():
        return
    print(f"{folder.parent.name}: {name}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    index, flags = folder / "index", INDEXES[name]
    dense = ("--backend", "dense", "--encoder", str(loop.encoder), "--device", "cpu")
    build_index(loop.data / "corpus.jsonl", index, *dense, *flags)
    with retrieval_process(index, folder / "server.log", "--device", "cpu") as url:
        evaluate(loop, folder / "run", url, policy_url)
        exact = folder.parent / "exact" / "run"
        queries = queries_of(exact)
        (folder / "found.json").write_text(json.dumps(first_passages(url, queries)), encoding="utf-8")
    manifest = json.loads((index / "manifest.json").read_text(encoding="utf-8"))
    rows = index / "vectors.rows"
    figures = {
        "memory": (index / "faiss.index").stat().st_size / manifest["count"],
        "disk": rows.stat().st_size / manifest["count"] if rows.exists() else 0.0,
        "queries": len(queries),
    }
    (folder / _FINISHED).write_text(json.dumps(figures), encoding="utf-8")


def evaluate(loop: Loop, out: Path, url: str, policy_url: str) -> None:
    """Evaluate the agent as the loop does, with greedy decoding. Raises SystemExit if that fails."""
    from examples.agentic_r.loop_settings import eval_arguments
    from rag_r1.evaluation import command

    args = eval_arguments(loop.agent, policy_url, url, loop.data / "val.parquet", out, "agentic")
    if status := command.run(args):
        raise SystemExit(f"error: rag-r1 eval ended with status {status}; see above")


def queries_of(run: Path) -> list[str]:
    """Return the queries that the agent sent to the retriever in an evaluation, in order."""
    turns = [turn for record in read_records(run / "trajectories") for turn in record["turns"]]
    calls = [call for turn in turns for call in turn["calls"] if call["tool"] == "search"]
    return [call["sent"]["query"] for call in calls]


def first_passages(url: str, queries: Sequence[str]) -> list[list[str]]:
    """Return the ids of the first _K passages for each query."""
    results: list[list[str]] = []
    for start in range(0, len(queries), _BATCH):
        batch = {"queries": list(queries[start : start + _BATCH]), "topk": _K, "return_scores": True}
        body = json.dumps(batch).encode()
        request = urllib.request.Request(f"{url}/retrieve", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            results += [[hit["document"]["id"] for hit in hits] for hits in json.load(response)["result"]]
    return results


def read_figures(folder: Path) -> dict[str, Any]:
    """Return the figures of an index, including its agreement with the exact index beside it."""
    report = json.loads((folder / "run" / "report.json").read_text(encoding="utf-8"))["figures"]
    figures = json.loads((folder / _FINISHED).read_text(encoding="utf-8"))
    approximate = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    exact = json.loads((folder.parent / "exact" / "found.json").read_text(encoding="utf-8"))
    pairs = list(zip(approximate, exact, strict=True))
    figures["same"] = sum(a[:1] == b[:1] for a, b in pairs) / len(pairs)
    figures["recall"] = sum(len(set(a) & set(b)) for a, b in pairs) / sum(len(b) for _, b in pairs)
    for name, key in (("em", "em"), ("searches", "queries"), ("found", "recall")):
        figures[name] = report[key]["mean"]
    return figures


def table(out: Path, seeds: Sequence[int]) -> str:
    """Return the table of all indexes; a cell has a value for each seed."""
    columns = (("same", 2), ("recall", 2), ("found", 2), ("em", 3), ("searches", 2))
    rows = []
    for name in INDEXES:
        by_seed = [read_figures(out / f"seed{seed}" / name) for seed in seeds if _is_done(out, seed, name)]
        if by_seed:
            row = [name, f"{by_seed[0]['memory']:.0f}", f"{by_seed[0]['disk']:.0f}"]
            row += [_cell([seed_figures[key] for seed_figures in by_seed], digits) for key, digits in columns]
            rows.append(row)
    head = [
        "index",
        "bytes a passage, memory",
        "and disk",
        "same first",
        "recall@3",
        "found",
        "EM",
        "searches",
    ]
    return "\n".join(markdown.table(head, rows))


def _cell(values: Sequence[Any], digits: int) -> str:
    """Return the values of all seeds; a value of a report is a dict with its confidence interval."""
    plain = [value["value"] if isinstance(value, dict) else value for value in values]
    return " ".join(f"{value:.{digits}f}" for value in plain)


def _is_done(out: Path, seed: int, name: str) -> bool:
    return (out / f"seed{seed}" / name / _FINISHED).exists()


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its table; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loops", type=Path, required=True, metavar="DIR", help="--out of the miniature")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default 0 1 2)")
    parser.add_argument("--indexes", nargs="+", choices=INDEXES, default=list(INDEXES), help="(default: all)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for indexes and table")
    args = parser.parse_args(argv)
    from rag_r1.inference.vllm_server import vllm_server

    for seed in args.seeds:
        folder = args.out / f"seed{seed}"
        names = [name for name in ("exact", *args.indexes) if not _is_done(args.out, seed, name)]
        if not names:
            continue
        loop = Loop.of(args.loops / f"seed{seed}")
        folder.mkdir(parents=True, exist_ok=True)
        with vllm_server(loop.agent, folder / "vllm.log") as policy_url:
            for name in dict.fromkeys(names):
                measure_index(loop, name, folder / name, policy_url)
    text = table(args.out, args.seeds)
    (args.out / "compressed.md").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}\n\nwritten: {args.out / 'compressed.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
