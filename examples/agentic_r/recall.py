"""Measures the recall of a seed's indexes in the misleading world, over its held-out facts.

Each fact is searched for once, with the query that the agent sends first: the entity's name, in the query
mode for which the index's encoder was trained. The index is served by the real retrieval server.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import httpx

from examples.agentic_r.loop_inputs import LoopInputs, worlds
from examples.agentic_r.world import MisleadingWorld
from rag_r1.demo.world import Question
from rag_r1.io.atomic_files import write_json
from rag_r1.io.bounded_http import bounded_http_client
from rag_r1.protocols.retriever_query import Mode, build_retriever_query
from rag_r1.runs.errors import RunError
from rag_r1.tools.retrieval.local_server import retrieval_process

#: The file in a seed's folder with the recall of its indexes.
RECALL = "recall.json"
#: The ranks up to which the recall is measured.
KS = (1, 3)
#: Number of queries in a request, and its time limit in seconds.
_BATCH = 32
_TIMEOUT_S = 60.0


def measure_recall(inputs: LoopInputs, seed: int, rounds: int) -> None:
    """Measure the recall of the held-out facts' passages and write it, unless it has been measured.

    RECALL has it by index: `first`, `round 1`, and so on.
    """
    path = inputs.folder / RECALL
    if path.exists():
        return
    data, _, test = worlds(seed)
    recalls = {"first": recall_of(inputs.folder / "index", data.val, test, "plain")}
    for number in range(1, rounds + 1):
        index = inputs.folder / "loop" / f"round{number}" / "index" / "index"
        recalls[f"round {number}"] = recall_of(index, data.val, test, "agentic")
    write_json(path, recalls)


def recall_of(index: Path, questions: list[Question], world: MisleadingWorld, mode: Mode) -> dict[str, float]:
    """Return the share of the questions' facts whose passage is among the first k: `{"recall@1": ..., ...}`.

    Raises RunError if the server does not start or does not answer.
    """
    facts = [(question, step) for question in questions for step in range(len(question.lookups))]
    try:
        with tempfile.TemporaryDirectory() as folder:
            with (
                retrieval_process(index, Path(folder) / "server.log", "--device", "cpu") as url,
                bounded_http_client(_TIMEOUT_S, base_url=url) as client,
            ):
                separator = client.get("/ready").json().get("separator") or " "  # BM25 has none
                texts = [_query(question, step, mode, separator) for question, step in facts]
                batches = (texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH))
                results = [ids for batch in batches for ids in _search(client, batch, max(KS))]
    except httpx.HTTPError as error:
        raise RunError(f"the server of {index} did not answer ({error}): run the command again") from error
    gold_ids = [world.passage_of(question.lookups[step])["id"] for question, step in facts]
    ranked = list(zip(gold_ids, results, strict=True))
    return {f"recall@{k}": sum(gold_id in ids[:k] for gold_id, ids in ranked) / len(ranked) for k in KS}


def _query(question: Question, step: int, mode: Mode, separator: str) -> str:
    """Return the query text for the fact at the index `step` of a question's lookups."""
    history = tuple(fact.entity for fact in question.lookups[:step])
    name = question.lookups[step].entity
    return build_retriever_query(question.text, name, mode, separator, history=history)


def _search(client: httpx.Client, queries: Sequence[str], k: int) -> list[list[str]]:
    """Return the ids of the first k passages for each query. Raises httpx's errors."""
    body = {"queries": list(queries), "topk": k, "return_scores": True}
    results = client.post("/retrieve", json=body).raise_for_status().json()["result"]
    return [[hit["document"]["id"] for hit in hits] for hits in results]
