"""The checks of a validation with all probes notice when something is wrong. The run has one question."""

from __future__ import annotations

from typing import Any

import pytest

from rag_r1.data.evidence import GoldEvidence
from tests.e2e import probe_checks
from tests.e2e.made_runs import fields, lines, proofs, write_records
from tests.e2e.probe_checks import CHECKS, PLAYED, ProbedRun

GOLD, OTHER = ('"Oslo"\nOslo is a town.', '"Rome"\nRome is a town.')
EVIDENCE = {"Which?": GoldEvidence.of({"supporting_titles": ["oslo"]})}
SHOWN = {"real": [GOLD], "empty": [], "random": [OTHER], "gold": [GOLD, OTHER], "withheld": [OTHER]}


def calls(documents: list[str]) -> list[dict[str, Any]]:
    found = [{"id": str(i), "contents": text} for i, text in enumerate(documents)]
    return [{"status": "ok", "documents": found}]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> ProbedRun:
    out = tmp_path_factory.mktemp("probes")
    for probe in ("real", *PLAYED):
        turns = [{"calls": calls(SHOWN[probe]) if probe in SHOWN else []}, {"calls": []}]
        record = {"question": "Which?", "id": "q#0", "turns": turns, "data_source": "demo"}
        write_records(out, [record], 3, split="val" if probe == "real" else f"val_{probe}")
    return ProbedRun(out, 3, {f"val-aux/demo/probe_{probe}/em/mean@1": 0.0 for probe in PLAYED}, EVIDENCE, 1)


def searched(probe: str, documents: list[str] | None):
    """The search of a probe found these documents; None: there was no search."""
    turn = {"calls": [] if documents is None else calls(documents)}
    return lines(f"trajectories/val_{probe}/*.jsonl", lambda records: records[0]["turns"][0].update(turn))


PLAYED_ONCE, LOGGED, CLOSED, SEARCHES = CHECKS
SPOILINGS = {
    "a validation without a question": (lines("trajectories/val/*.jsonl", list.pop), PLAYED_ONCE),
    "a probe is missing": (lines("trajectories/val_random/*.jsonl", list.pop), PLAYED_ONCE),
    "nothing is logged": (fields(metrics={}), LOGGED),
    "a closed book is searched": (searched("closed_book", [GOLD]), CLOSED),
    "an empty search finds something": (searched("empty", [OTHER]), SEARCHES),
    "a random passage is gold": (searched("random", [GOLD]), SEARCHES),
    "gold is not withheld": (searched("withheld", [OTHER, GOLD]), SEARCHES),
    "with gold withheld nothing is left": (searched("withheld", []), SEARCHES),
    "gold comes second": (searched("gold", [OTHER, GOLD]), SEARCHES),
    "gold is not searched for": (searched("gold", None), SEARCHES),
}


globals().update(proofs(probe_checks, CHECKS, SPOILINGS, fails=AssertionError))
