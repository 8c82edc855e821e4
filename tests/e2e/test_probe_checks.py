"""The checks of probe_checks.py pass for what such a training leaves behind, and each notices its fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rag_r1.data.evidence import GoldEvidence
from tests.e2e.probe_checks import CHECKS, PLAYED, ProbedRun

GOLD, OTHER = ('"Oslo"\nOslo is a town.', '"Rome"\nRome is a town.')
EVIDENCE = {"Which?": GoldEvidence.of({"supporting_titles": ["oslo"]})}
SHOWN = {"real": [GOLD], "empty": [], "random": [OTHER], "gold": [GOLD, OTHER], "withheld": [OTHER]}


def record(probe: str, documents: list[str] | None) -> dict:
    calls = [
        {"status": "ok", "documents": [{"id": str(i), "contents": text} for i, text in enumerate(found)]}
        for found in ([documents] if documents is not None else [])
    ]
    return {
        "question": "Which?",
        "id": "q#0",
        "step": 3,
        "turns": [{"calls": calls}, {"calls": []}],
        "data_source": "demo",
    }


def made_run(out: Path, **other: list[str] | None) -> ProbedRun:
    """A run of one question, with other documents for some probes."""
    for probe in ("real", *PLAYED):
        folder = out / "trajectories" / ("val" if probe == "real" else f"val_{probe}")
        folder.mkdir(parents=True)
        line = json.dumps(record(probe, {**SHOWN, **other}.get(probe)))
        (folder / "step_000003-1.jsonl").write_text(line + "\n")
    return ProbedRun(out, 3, {f"val-aux/demo/probe_{probe}/em/mean@1": 0.0 for probe in PLAYED}, EVIDENCE, 1)


def check(run: ProbedRun) -> None:
    for one in CHECKS:
        one(run)


def test_a_sound_run_passes(tmp_path):
    check(made_run(tmp_path))


@pytest.mark.parametrize(
    "wrong",
    [
        {"closed_book": [GOLD]},
        {"empty": [OTHER]},
        {"random": [GOLD]},
        {"withheld": [OTHER, GOLD]},
        {"withheld": []},
        {"gold": [OTHER, GOLD]},
        {"gold": None},
    ],
    ids=str,
)
def test_a_search_that_is_not_the_probes_is_noticed(tmp_path, wrong):
    with pytest.raises(AssertionError):
        check(made_run(tmp_path, **wrong))


def test_a_probe_that_is_missing_is_noticed(tmp_path):
    run = made_run(tmp_path)
    for name in ("trajectories/val_random/step_000003-1.jsonl",):
        (tmp_path / name).unlink()
    with pytest.raises(AssertionError):
        check(run)
    with pytest.raises(AssertionError):
        check(ProbedRun(made_run(tmp_path / "other").out, 3, {}, EVIDENCE, 1))
