"""The checks of a validation with all probes notice when something is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e import probe_checks
from tests.e2e.left_behind import step_metrics
from tests.e2e.mutations import each, fields, lines, proofs, unpack
from tests.e2e.probe_checks import CHECKS, ProbedRun, evidence_in

STEP, VALIDATED = 3, 12


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> ProbedRun:
    out = unpack("dapo", tmp_path_factory.mktemp("probes"))
    evidence = evidence_in(out / "data" / "val.parquet")
    return ProbedRun(out, STEP, step_metrics(out / "metrics.jsonl")[STEP], evidence, VALIDATED)


def records(split: str, change):
    return lines(f"trajectories/{split}/step_00000{STEP}-*.jsonl", change)


def searched(probe: str, source: str):
    """The searches of a probe found what those of another did, for the same question."""

    def change(run: ProbedRun) -> None:
        turns = {record["question"]: record["turns"] for record in run.records(source)}

        def find(record: dict[str, Any]) -> None:
            record["turns"] = turns[record["question"]]

        records(f"val_{probe}", each(find))(run)

    return change


def documents(probe: str, change):
    """Changes what each search of a probe found."""

    def change_all(record: dict[str, Any]) -> None:
        for turn in record["turns"]:
            for call in turn["calls"]:
                change(call["documents"])

    return records(f"val_{probe}", each(change_all))


PLAYED_ONCE, LOGGED, CLOSED, SEARCHES = CHECKS
MUTATIONS = {
    "a validation without a question": (records("val", list.pop), PLAYED_ONCE),
    "a probe is missing": (records("val_random", list.pop), PLAYED_ONCE),
    "nothing is logged": (fields(metrics={}), LOGGED),
    "a closed book is searched": (searched("closed_book", "gold"), CLOSED),
    "an empty search finds something": (searched("empty", "random"), SEARCHES),
    "a random passage is gold": (searched("random", "gold"), SEARCHES),
    "gold is not withheld": (searched("withheld", "real"), SEARCHES),
    "with gold withheld nothing is left": (documents("withheld", list.clear), SEARCHES),
    "gold comes second": (documents("gold", list.reverse), SEARCHES),
    "gold is not searched for": (searched("gold", "closed_book"), SEARCHES),
}


globals().update(proofs(probe_checks, CHECKS, MUTATIONS, fails=AssertionError))
