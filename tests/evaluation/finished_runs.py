"""Run folders as an evaluation leaves them, made by hand: records, and a card if there is one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_r1.agent import Trajectory, Turn
from rag_r1.agent.records import TrajectoryDump
from rag_r1.protocols import Document, load_protocol
from rag_r1.rollouts.provenance import Provenance, protocol_part


def record(
    question_id: str,
    answer: str | None = "Paris",
    *,
    golds: Sequence[str] = ("Paris",),
    source: str = "hotpotqa",
    sample: int = 0,
    searches: Sequence[Sequence[str]] = (("q",),),
    documents: Sequence[Document] = (),
    failure: str | None = None,
    status: str | None = None,
    invalid: bool = False,
    failed_calls: int = 0,
    rewards: dict[str, float | None] | None = None,
    seconds: float = 2.0,
    **context: Any,
) -> dict[str, Any]:
    """A record; `searches`: the queries of each turn with a search, `documents`: results of the first of
    them; `failed_calls`: turns of which the first search got no answer."""
    turns = [
        Turn.searched("", queries, [list(documents) if i == 0 else [] for _ in queries], observed_tokens=7)
        for i, queries in enumerate(searches)
    ]
    for turn in turns[:failed_calls]:
        turn.status, turn.calls[0].status, turn.calls[0].documents = "tool_failure", "failed", None
    if invalid:
        turns.append(Turn("?", "invalid", status="invalid"))
    if answer is not None:
        turns.append(Turn(answer, "answer", generated_tokens=3))
    played = Trajectory(f"{question_id}#{sample}", f"What is {question_id}?", "rag_r1_mq", turns, answer)
    played.status = status or ("answered" if answer is not None else "turn_limit")
    played.prompt_tokens, played.generated_tokens, played.observed_tokens = 100, 20, 50
    played.seconds, played.rewards = seconds, rewards or {}
    if failure:
        played.add_failure(failure, "made to fail")
    run = {"step": 0, "split": "test", "data_source": source, "golds": list(golds)}
    return {**run, "question_id": question_id, "sample": sample, **context, **played.to_dict()}


def write_run(folder: Path, records: Sequence[dict[str, Any]], card: Provenance | None = None) -> Path:
    """A run folder with these records, in this order."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(record) + "\n" for record in records)
    (folder / "step_000000-1.jsonl").write_text("".join(lines), encoding="utf-8")
    if card is not None:
        card.write(folder)
    return folder


def dumped_run(folder: Path, trajectories: Sequence[Trajectory], golds: Sequence[str]) -> Path:
    """The same by the project's own writer, without ids of questions: a training's validation."""
    dump = TrajectoryDump(str(folder))
    for trajectory in trajectories:
        assert dump.write(trajectory, step=3, split="val", data_source="hotpotqa", golds=list(golds))
    return folder


def card(**changed: Any) -> Provenance:
    """A card; `changed` replaces sections."""
    sections: dict[str, Any] = {
        "started": "2026-11-22T10:00:00+00:00",
        "model": {"name": "base", "sha256": "0" * 64},
        "engine": {"mode": "tokens"},
        "protocol": protocol_part(load_protocol("rag_r1_mq")).model_dump(),
        "budget": {"max_turns": 4},
        "failures": {"mask": ["retriever", "tool", "engine", "row", "error"]},
        "sampling": {"temperature": 0.0},
        "seed": 0,
        "corpus_sha256": "c" * 64,
        "data": {"test.parquet": {"sha256": "d" * 64, "rows": 4}},
    }
    return Provenance(**{**sections, **changed})
