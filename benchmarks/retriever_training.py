"""Measures how training a retriever on half of the questions changes recall on the other half.

    python benchmarks/retriever_training.py --corpus corpus.jsonl.gz --questions questions.jsonl --work DIR

Questions are JSONL with {"question", "supporting_ids": [corpus id, ...]} per line. For each split the
questions are shuffled with the split's number and halved. Each supporting passage of the first half is the
positive of a training row; its negatives are the passages that the untrained encoder ranks highest, without
the supporting ones. `rag-r1 retriever train` trains on these rows, with recipes/agentic_r/retriever_cpu.yaml
(--recipe) and `--mode plain`, since the question itself is the query here. Then an index of the whole corpus
is built with the trained encoder, and searched for the second half.

Recall@k is the mean share of a question's supporting passages among the first k. The interval of the mean
difference is Student's t over the splits (95 %). Since the splits share questions, it describes these splits
rather than allowing inference about others.

Every step leaves a file under --work, so the same command resumes after a kill: indexes and trainings
continue, and a split with a `result.json` is not repeated. The settings of a split, with the hashes of
corpus, questions and recipe, are kept in its `settings.json` and `result.json`; the command refuses to mix
them with others. --base-index uses an existing index of the same corpus and untrained encoder.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.retrieval_recall import recall  # noqa: E402
from rag_r1.runs import markdown  # noqa: E402

#: A row of --questions.
Question = Mapping[str, Any]
#: Number of passages that are searched for each question; those that are not supporting are negatives.
MINED = 30
#: Student's t for 95 %, two-sided, by degrees of freedom.
_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, metavar="FILE")
    parser.add_argument("--questions", type=Path, required=True, metavar="FILE")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder for everything")
    parser.add_argument("--splits", type=int, default=5, help="(default %(default)s)")
    parser.add_argument(
        "--first-split",
        type=int,
        default=0,
        metavar="N",
        help="number of the first (default %(default)s); choose settings on other splits than you report",
    )
    parser.add_argument("--k", type=int, nargs="+", default=[5, 10], help="default: 5 10")
    parser.add_argument("--base-index", type=Path, metavar="DIR", help="an index with the untrained encoder")
    parser.add_argument("--encoder", default="minilm", help="the untrained encoder (default %(default)s)")
    parser.add_argument("--device", default="cpu", help="of the indexes (default %(default)s)")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="in which the passages are encoded (default %(default)s)",
    )
    parser.add_argument(
        "--recipe", type=Path, default=ROOT / "recipes/agentic_r/retriever_cpu.yaml", metavar="FILE"
    )
    parser.add_argument("options", nargs="*", help="further options of `rag-r1 retriever train`, after --")
    args = parser.parse_args(arguments)
    if args.splits < 1:
        parser.error("--splits must be 1 or more")

    with args.questions.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    questions = [row for row in rows if row["supporting_ids"]]
    args.work.mkdir(parents=True, exist_ok=True)
    made_from = settings(args)
    numbers = range(args.first_split, args.first_split + args.splits)
    for number in numbers:  # before the first is trained
        refuse_others(args.work / f"split{number}", made_from)
    results = {number: run_split(number, questions, args, made_from) for number in numbers}
    print("\n".join(table(results, args.k)))
    return 0


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings on which the figures of a split depend, besides its number."""
    from retrieval_server.folder.manifest import sha256_of_file

    files = {name: sha256_of_file(getattr(args, name)) for name in ("corpus", "questions", "recipe")}
    base = str(args.base_index.resolve()) if args.base_index else None
    values = {name: getattr(args, name) for name in ("encoder", "device", "dtype", "options")}
    return {**files, **values, "k": sorted(args.k), "base_index": base}


def refuse_others(folder: Path, made_from: Mapping[str, Any]) -> None:
    """Raise SystemExit if the files of a split were made with other or unknown settings."""
    for path in (folder / "settings.json", folder / "result.json"):
        if not path.is_file():
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        recorded = content if path.name == "settings.json" else content.get("settings", {})
        if other := [name for name in made_from if recorded.get(name) != made_from[name]]:
            raise SystemExit(
                f"error: {path}: made with other settings ({', '.join(other)}), so its figures cannot be "
                "used. Choose another --work, or remove this one."
            )


def write(path: Path, text: str) -> None:
    """Write a file, which appears only when it is complete."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def run_split(
    number: int, questions: Sequence[Question], args: argparse.Namespace, made_from: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the results of a split, measured or read from its folder.

    They are the recall by k, `untrained` and `trained`, the numbers of `questions` in both halves, and the
    `settings`.
    """
    folder = args.work / f"split{number}"
    result = folder / "result.json"
    if result.is_file():
        return json.loads(result.read_text(encoding="utf-8"))
    train, test = halves(questions, number)
    folder.mkdir(exist_ok=True)
    write(folder / "settings.json", json.dumps(made_from, indent=1) + "\n")
    rows = folder / "train.jsonl"
    base = args.base_index or ensure_index(args, args.work / "untrained", args.encoder)
    if not rows.is_file():
        lines = training_rows(train, search_results(base, train, args))
        write(rows, "".join(json.dumps(line) + "\n" for line in lines))
    model = train_model(rows, folder, args)
    measured = {
        "untrained": measure(base, test, args),
        "trained": measure(ensure_index(args, folder / "index", str(model)), test, args),
        "questions": [len(train), len(test)],
        "settings": made_from,
    }
    write(result, json.dumps(measured, indent=1) + "\n")
    return measured


def halves(questions: Sequence[Any], number: int) -> tuple[list[Any], list[Any]]:
    """Return the questions of a split for training, and those for the test."""
    shuffled = random.Random(number).sample(list(questions), len(questions))
    middle = len(shuffled) // 2
    return shuffled[:middle], shuffled[middle:]


def training_rows(questions: Sequence[Question], results: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Return rows for `rag-r1 retriever train`, one for each supporting passage of a question.

    `results` has the ids that the untrained encoder returns for each question.
    """
    rows = []
    for question, ids in zip(questions, results, strict=True):
        gold = list(dict.fromkeys(question["supporting_ids"]))
        negatives = [passage_id for passage_id in ids if passage_id not in gold]
        rows += [
            {
                "dataset": "hotpotqa",
                "query_id": question["id"],
                "question": question["question"],
                "round_index": 1,
                "history_queries": [],
                "query_text": question["question"],
                "passage_ids": [positive, *negatives],
                "scores": [
                    {"em": float(i == 0), "local_utility": float(i == 0)} for i in range(len(negatives) + 1)
                ],
            }
            for positive in gold
        ]
    return rows


def search_results(
    folder: Path, questions: Sequence[Question], args: argparse.Namespace, count: int = MINED
) -> list[list[str]]:
    """Return the ids of the best passages in an index for each question."""
    from retrieval_server.search.index_source import IndexSource

    with closing(IndexSource.open(folder, device=args.device)) as source:
        hits_of_questions = source.search([question["question"] for question in questions], count)
    return [[hit.passage.id for hit in hits] for hits in hits_of_questions]


def ensure_index(args: argparse.Namespace, out: Path, encoder: str) -> Path:
    """Build an index of the corpus with this encoder, unless it exists, and return its folder."""
    from retrieval_server.indexing.builder import build_index
    from retrieval_server.indexing.options import BuildOptions

    if not out.exists():
        corpus, device, dtype = args.corpus, args.device, args.dtype
        build_index(
            BuildOptions(corpus=corpus, out=out, backend="dense", encoder=encoder, device=device, dtype=dtype)
        )
    return out


def train_model(rows: Path, folder: Path, args: argparse.Namespace) -> Path:
    """Train the encoder on the rows, and return the folder of the model. Raises SystemExit if that fails."""
    from rag_r1.retriever.training.command import main as train

    arguments = ["--recipe", args.recipe, "--model", args.encoder, "--mode", "plain"]
    arguments += ["--rows", rows, "--corpus", args.corpus, "--out", folder / "training", *args.options]
    if status := train(list(map(str, arguments))):
        raise SystemExit(status)
    return folder / "training" / "model"


def measure(folder: Path, questions: Sequence[Question], args: argparse.Namespace) -> dict[str, float]:
    """Return the recall of an index at each k."""
    results = search_results(folder, questions, args, max(args.k))
    golds = [set(question["supporting_ids"]) for question in questions]
    return {str(k): recall([ids[:k] for ids in results], golds) for k in args.k}


def table(results: Mapping[int, Mapping[str, Any]], ks: Sequence[int]) -> list[str]:
    """Return the table of the splits and the mean differences with their intervals, as Markdown lines."""
    heads = [head for k in ks for head in (f"untrained@{k}", f"trained@{k}", "points")]
    rows = []
    for number, result in results.items():
        cells = []
        for k in map(str, ks):
            before, after = result["untrained"][k], result["trained"][k]
            cells += [f"{before:.1%}", f"{after:.1%}", f"{100 * (after - before):+.1f}"]
        rows.append([number, *cells])
    lines = markdown.table(["split", *heads], rows)
    for k in map(str, ks):
        gains = [100 * (result["trained"][k] - result["untrained"][k]) for result in results.values()]
        lines.append(f"recall@{k}: {mean(gains):+.1f} points, {interval(gains)}")
    return lines


def interval(gains: Sequence[float]) -> str:
    """Describe the confidence interval of the mean of the splits' gains, if _T has their number."""
    if len(gains) - 1 not in _T:
        return f"of {len(gains)} split{'s' * (len(gains) != 1)}, without an interval"
    half = _T[len(gains) - 1] * stdev(gains) / math.sqrt(len(gains))
    return f"{mean(gains) - half:+.1f} to {mean(gains) + half:+.1f} (95 %, {len(gains)} splits)"


if __name__ == "__main__":
    sys.exit(main())
