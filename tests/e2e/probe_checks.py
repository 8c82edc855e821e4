"""What a validation with all probes must have left behind: each check raises AssertionError.

tests/e2e/test_probe_checks.py spoils the trajectories and sees that a check notices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rag_r1.agent.records import records_by_step
from rag_r1.data.evidence import GoldEvidence
from rag_r1.probes.probes import PROBES
from rag_r1.protocols import Document

PLAYED = tuple(probe for probe in PROBES if probe != "real")

Record = Mapping[str, Any]


@dataclass(frozen=True)
class ProbedRun:
    """The finished training, whose last step was validated. `metrics`: of that step, `step`; `evidence`: the
    gold passages of the questions."""

    out: Path
    step: int
    metrics: Mapping[str, float]
    evidence: Mapping[str, GoldEvidence]
    validated: int  # questions

    def records(self, probe: str) -> list[Record]:
        """The trajectories of that step under a probe."""
        folder = self.out / "trajectories" / (f"val_{probe}" if probe != "real" else "val")
        return records_by_step(folder).get(self.step, []) if folder.exists() else []


def evidence_in(questions: Path) -> dict[str, GoldEvidence]:
    """The gold passages that a parquet file of questions names."""
    rows = pq.read_table(questions).to_pylist()
    return {row["extra_info"]["question"]: GoldEvidence.of(row["extra_info"]) for row in rows}


def every_question_is_played_under_every_probe(run: ProbedRun) -> None:
    questions = sorted(record["question"] for record in run.records("real"))
    assert len(questions) == run.validated
    for probe in PLAYED:
        assert sorted(record["question"] for record in run.records(probe)) == questions


def every_probe_is_logged_by_its_own_name(run: ProbedRun) -> None:
    for probe in PLAYED:
        assert any(f"/probe_{probe}/em/" in key for key in run.metrics)


def a_closed_book_has_no_search(run: ProbedRun) -> None:
    assert not [documents for record in run.records("closed_book") for documents in searches(record)]


def the_other_searches_find_what_their_probe_says(run: ProbedRun) -> None:
    some = dict.fromkeys(PLAYED, 0)
    for probe in PLAYED:
        for record in run.records(probe):
            evidence = run.evidence[record["question"]]
            for documents in searches(record):
                some[probe] += 1
                held = [evidence.holds(document) for document in documents]
                assert probe != "empty" or not documents
                assert probe not in ("random", "withheld") or (documents and not any(held))
                assert probe != "gold" or held[0]
    assert all(some[probe] for probe in PLAYED if probe != "closed_book")


def searches(record: Record) -> Iterator[list[Document]]:
    """What each query of a trajectory has found."""
    for turn in record["turns"]:
        for call in turn["calls"]:
            if call["status"] == "ok":
                yield [Document(document["id"], document["contents"]) for document in call["documents"]]


CHECKS = (
    every_question_is_played_under_every_probe,
    every_probe_is_logged_by_its_own_name,
    a_closed_book_has_no_search,
    the_other_searches_find_what_their_probe_says,
)
