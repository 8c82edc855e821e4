"""The loop over the steps of a pipeline: in order, each once, and what a failure leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rag_r1.runs.errors import RunError
from rag_r1.runs.processes import MARK
from rag_r1.runs.step_loop import run_steps
from rag_r1.runs.steps import PipelineFolder, Step


def step(name: str, made: list[str], *needs: str, fails: bool = False) -> Step:
    def work(folder: Path) -> dict:
        made.append(name)
        if fails:
            raise RunError(f"{name} failed")
        (folder / "result").write_text(name)
        return {}

    return Step(name, {}, work, ("result",), needs)


@pytest.fixture(autouse=True)
def unmarked(monkeypatch):
    monkeypatch.setenv(MARK, os.environ.get(MARK, ""))


def test_steps_are_made_in_order_and_once_and_a_failure_keeps_what_is_done(tmp_path, capsys):
    made: list[str] = []
    begun: list[str] = []
    ended: list[tuple[str, bool]] = []
    first, broken = step("first", made), step("second", made, "first", fails=True)
    with PipelineFolder.locked(tmp_path) as folder:
        with pytest.raises(RunError, match="second failed"):
            run_steps(folder, [first, broken], lambda step: begun.append(step.name))
        assert os.environ[MARK] == str(tmp_path), "its processes are found by the next start"
        whole = [first, step("second", made, "first"), step("third", made)]
        run_steps(folder, whole, after=lambda step, is_new: ended.append((step.name, is_new)))
    assert made == ["first", "second", "second", "third"] and begun == ["first", "second"]
    assert ended == [("first", False), ("second", True), ("third", True)]
    output = capsys.readouterr().out
    assert "1/3 first: was done before" in output and "3/3 third: done in 0 s" in output
