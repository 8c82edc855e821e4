"""Measures the recall of an index in the misleading world, over its held-out facts.

Each fact is asked for once, as the agent does first: with the name, in the mode that the index's encoder was
trained for. The server is the real one.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from examples.agentic_r.world import MisleadingWorld
from rag_r1.demo.world import Question
from rag_r1.protocols.retriever_query import Mode, build_retriever_query
from rag_r1.tools.retrieval.local_server import retrieval_process

KS = (1, 3)
_BATCH = 32


def recall_of(
    index: Path, questions: Sequence[Question], world: MisleadingWorld, mode: Mode
) -> dict[str, float]:
    """{"recall@1": ..., "recall@3": ...} over all facts of the questions. Raises RunError."""
    facts = [(question, number) for question in questions for number in range(len(question.lookups))]
    with tempfile.TemporaryDirectory() as folder:
        with retrieval_process(index, Path(folder) / "server.log", "--device", "cpu") as url:
            with urllib.request.urlopen(f"{url}/ready", timeout=30) as answer:
                separator = json.load(answer).get("separator") or " "  # BM25 has none
            texts = [_query(question, number, mode, separator) for question, number in facts]
            results = [
                ids
                for start in range(0, len(texts), _BATCH)
                for ids in _first(url, texts[start : start + _BATCH], max(KS))
            ]
    gold_ids = [world.passage_of(question.lookups[number])["id"] for question, number in facts]
    return {
        f"recall@{k}": sum(w in ids[:k] for w, ids in zip(gold_ids, results, strict=True)) / len(gold_ids)
        for k in KS
    }


def _query(question: Question, number: int, mode: Mode, separator: str) -> str:
    history = tuple(fact.entity for fact in question.lookups[:number])
    name = question.lookups[number].entity
    return build_retriever_query(question.text, name, mode, separator, history=history)


def _first(url: str, queries: Sequence[str], k: int) -> list[list[str]]:
    body = json.dumps({"queries": list(queries), "topk": k, "return_scores": True}).encode()
    request = urllib.request.Request(f"{url}/retrieve", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return [[hit["document"]["id"] for hit in hits] for hits in json.load(answer)["result"]]
