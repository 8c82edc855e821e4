"""The benchmark of the explorer, on a few trajectories."""

from __future__ import annotations

import json

import pytest

from .conftest import run_script


@pytest.mark.slow
def test_it_prints_its_figures_and_removes_only_its_own_files(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes").touch()
    figures = json.loads(run_script("benchmarks/explorer.py", "--work", work, "--records", 60, "--rounds", 1))
    assert figures["records"] == 60 and figures["peak_memory_mb"] > 0
    assert len(figures["filters_s"]) == 6 and len(figures["text_s"]) == 3
    assert [path.name for path in work.iterdir()] == ["notes"]
