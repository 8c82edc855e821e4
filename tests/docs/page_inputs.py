"""Small inputs of the pages whose unmarked shell blocks the tests run, under the names that the pages use."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rag_r1.data.rows import QuestionRow, write_rows
from rag_r1.demo.world import make_world
from retrieval_server.indexing.builder import build_index
from retrieval_server.indexing.options import BuildOptions
from tests.corpus.row_files import written
from tests.evaluation.finished_runs import card, record, write_run
from tests.fakes.own_teacher import OwnTeacher, write_documents
from tests.fakes.retriever import Retriever
from tests.fakes.scripted_teacher import Teacher
from tests.retriever.selection.test_command import candidates, correctness, relevance

PASSAGES = {
    "1": '"Emma"\nEmma is a novel by Jane Austen.',
    "2": '"Ulm"\nUlm was founded in 850 and lies on the Danube.',
    "3": '"Danube"\nThe Danube is a river of Europe.',
}
CORPUS = [{"id": name, "contents": contents} for name, contents in PASSAGES.items()]
ROW = QuestionRow("Who wrote Emma?", ("Jane Austen",), id="q0", split="test", protocol="rag_r1_mq")


@dataclass(frozen=True)
class Example:
    """What a page's commands read, and what they leave: files, and words on the terminal. `is_heavy`: run in
    the tier `full` only. `server`: stands in for the search and the endpoint of a page that starts none."""

    prepare: Callable[[Path], object]
    leaves: tuple[str, ...] = ()
    prints: tuple[str, ...] = ()
    is_heavy: bool = False
    server: Callable[[], Any] = lambda: Retriever(PASSAGES)


def corpus(path: Path) -> Path:
    lines = "".join(json.dumps(row) + "\n" for row in CORPUS)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())
    return path


def questions(path: Path) -> None:
    titles = {"supporting_titles": ["Emma"]}
    path.parent.mkdir(parents=True)
    write_rows(
        path, [replace(ROW, id=f"{path.parent.name}/{number}", metadata=titles) for number in range(2)]
    )


def runs(folder: Path, cards: Mapping[str, Mapping[str, Any]]) -> None:
    """Finished runs of the same questions; `cards`: what is particular about each."""
    for name, changed in cards.items():
        records = [record(f"q{number}", "Paris" if number else "Rome") for number in range(4)]
        write_run(folder / name, records, card(**changed))


def index(folder: Path, *names: str) -> None:
    path = corpus(folder / "passages.jsonl")
    for name in names:
        build_index(BuildOptions(corpus=(path,), out=folder / name, backend="bm25"))


def lines(folder: Path, rows: Mapping[str, Iterable[Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, listed in rows.items():
        written(folder / name, listed)


def _corpora(folder: Path) -> None:
    corpus(folder / "wiki-18.jsonl.gz")
    for name in ("hotpotqa", "musique"):
        questions(folder / "data" / name / "test.parquet")
    row = {
        "_id": "q1",
        "question": "Where does the river of Ulm end?",
        "answer": "Black Sea",
        "supporting_facts": [["Danube", 0], ["Black Sea", 0]],
        "context": [["Danube", ["The Danube is a river."]], ["Black Sea", ["It is a sea."]]],
    }
    (folder / "hotpot_dev_distractor_v1.json").write_text(json.dumps([row]), encoding="utf-8")


def _data(folder: Path) -> None:
    for name, question in {"train_data.json": "Who wrote Emma?", "test_data.json": "Where is Ulm?"}.items():
        (folder / name).write_text(json.dumps([{"question": question, "golden_answers": ["x"]}]))


def _retriever_rows(folder: Path) -> None:
    rows = {
        "candidates.jsonl": [candidates("q1")],
        "relevance.jsonl": [relevance("q1", {"p3": 90, "p0": 100})],
        "correctness.jsonl": [correctness("q1", "p3")],
    }
    lines(folder / "data" / "agentic_r" / "round1", rows)


def _browsecomp(folder: Path) -> None:
    corpus(folder / "browsecomp_plus.jsonl")
    runs(folder / "evals", {"bcp": {}})


def _search_card(folder: Path) -> None:
    corpus(folder / "wiki-18.jsonl.gz")
    questions(folder / "data" / "mq" / "test.parquet")


def _notes(folder: Path) -> None:
    (folder / "my" / "notes").mkdir(parents=True)
    (folder / "my" / "notes" / "ulm.md").write_text("# Ulm\n\nUlm lies on the Danube.\n", encoding="utf-8")


def _manuals(folder: Path) -> None:
    write_documents(folder / "manuals", make_world(0, "train", people=24, places=10, words=24))


def teacher() -> Teacher:
    return Teacher.of_world(seed=5, count=6, calm=True, latency_s=0.0)


def _traces(folder: Path) -> None:
    rows = [replace(ROW, question=q.text, golds=(q.gold,), id=q.id) for q in teacher().questions]
    (folder / "data" / "mq").mkdir(parents=True)
    write_rows(folder / "data" / "mq" / "train.parquet", rows)
    lines(folder, {"q.jsonl": [{"question": row.question, "golden_answers": row.golds} for row in rows]})


MODEL = {"model": {"name": "other", "sha256": "1" * 64}}
ROUND = "data/agentic_r/round1"
EXAMPLES = {
    "docs/guides/agentic_r.md": Example(_retriever_rows, (f"{ROUND}/faithful.jsonl",)),
    "docs/guides/browsecomp_plus.md": Example(_browsecomp, ("indexes/bcp/manifest.json", "runs/my-agent")),
    "docs/guides/corpora.md": Example(
        _corpora, ("checks/wiki-18/repaired_corpus.jsonl", "indexes/repaired/manifest.json")
    ),
    "docs/guides/data.md": Example(_data, ("data/mq/train.parquet", "data/mq/test.parquet")),
    "docs/guides/evaluation.md": Example(
        lambda folder: runs(folder / "evals", {"one_shot": {"budget": {"max_turns": 1}}, "ppo-mq": {}}),
        prints=("ppo-mq",),
    ),
    "docs/guides/memory.md": Example(lambda folder: None, prints=("grpo_lora", "32B"), is_heavy=True),
    "docs/guides/own.md": Example(
        _manuals,
        ("outputs/own/plan.yaml", "outputs/own/questions/train.parquet"),
        ("cost: about", "all checks passed", "3/3 questions: done in"),
        server=lambda: OwnTeacher("big-model"),
    ),
    "docs/guides/reports.md": Example(
        lambda folder: runs(folder / "outputs", {"base": {}, "grpo": MODEL}),
        ("outputs/grpo/report.json", "outputs/grpo/report.md", "outputs/base_grpo/compare.md"),
    ),
    "docs/guides/search_card.md": Example(_search_card, ("data/mq/passages.json",)),
    "docs/guides/tools.md": Example(_notes, ("my/notes/.rag_r1_index",)),
    "docs/guides/traces_and_filter.md": Example(
        _traces, ("data/sft/train.parquet", "thinker_traces/traces.jsonl"), server=teacher
    ),
    "docs/retrieval_server.md": Example(
        lambda folder: index(folder / "indexes", "wiki", "news", "wiki-step-200"),
        prints=("Jane Austen", '"index_version":2'),
    ),
    "docs/security.md": Example(lambda folder: index(folder / "indexes", "wiki")),
    "recipes/README.md": Example(lambda folder: None, ("mine.yaml",)),
    "recipes/hardware/README.md": Example(lambda folder: None, prints=("rank 32, not merged", "of 24 GB")),
    "retrieval_server/README.md": Example(
        lambda folder: corpus(folder / "corpus.jsonl.gz"), prints=("Jane Austen", "founded in 850")
    ),
}
