"""The record of a supervised run: what its page and its picture say, and what is no record."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from rag_r1.runs.errors import RunError
from rag_r1.training.guard import attempts
from rag_r1.training.guard.attempts import RECORD, Attempts
from rag_r1.training.guard.signs import Sign, Verdict


@pytest.mark.parametrize(
    ("verdict", "lines"),
    [(Verdict.NOTE, 0), (Verdict.WARN, 0), (Verdict.ROLL_BACK, 1), (Verdict.STOP, 1)],
)
def test_only_a_sign_that_ended_an_attempt_has_a_line(tmp_path, monkeypatch, verdict, lines):
    drawn: list[int] = []
    names = ("plot", "axvline", "set", "legend")
    axes = SimpleNamespace(**{name: lambda *values, **options: None for name in names})
    axes.axvline = lambda step, **options: drawn.append(step)
    monkeypatch.setattr(attempts, "draw", lambda path, paint, **options: paint(axes) or [])
    monkeypatch.setattr(attempts, "whole_steps", lambda axes: None)
    made = Attempts(tmp_path)
    made.begin(0, [], tmp_path / "metrics-1.jsonl")
    made.add_sign(Sign("a", verdict, "a cause", 4), 4)
    made.end("ended", 5)
    assert drawn == [5] * lines


def test_an_attempt_that_ended_before_a_step_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(attempts, "draw", lambda *values, **options: [])
    made = Attempts(tmp_path)
    for first, last in ((0, -1), (10, 10), (10, 12)):
        made.begin(first, [], tmp_path / "metrics-1.jsonl")
        made.end("it ended with status 1", last)
    page = (tmp_path / "attempts.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if "status 1" in line]
    assert [row[1] for row in rows] == ["none", "none", "11 to 12"]


def test_a_record_without_its_beginning_is_named(tmp_path):
    (tmp_path / RECORD).write_text(json.dumps({"event": "end", "attempt": 1, "ending": "x"}) + "\n")
    with pytest.raises(RunError, match=f"{RECORD}, line 1"):
        Attempts(tmp_path)
