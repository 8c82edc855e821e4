"""The table of demo runs over several seeds: which seeds it takes, and what a line says."""

from __future__ import annotations

import json

import pytest

from benchmarks import demo_seeds
from rag_r1.runs.markdown import table_row

RESULTS = {
    "recipe": "grpo",
    "seed": 7,
    "seconds": 250.0,
    "held_out": {
        "0": {"EM both": 0.0, "EM all": 0.25, "searches a question": 1.0, "turns a question": 2.0},
        "18": {"EM both": 0.8, "EM all": 0.75, "searches a question": 1.8, "turns a question": 2.2},
    },
}


def test_random_seeds_differ_and_are_kept_for_a_run_that_goes_on(tmp_path):
    first = demo_seeds.draw_seeds(3, tmp_path / "runs")
    assert len(set(first)) == 3
    assert demo_seeds.draw_seeds(5, tmp_path / "runs")[:3] == first
    assert demo_seeds.draw_seeds(2, tmp_path / "runs") == first[:2]
    assert demo_seeds.draw_seeds(3, tmp_path / "other") != first


def test_the_table_is_made_from_finished_runs_without_a_training(tmp_path, capsys):
    (tmp_path / "grpo-seed7").mkdir()
    (tmp_path / "grpo-seed7" / "results.json").write_text(json.dumps(RESULTS))
    demo_seeds.main(["--recipes", "grpo", "--seeds", "7", "--out", str(tmp_path)])
    assert table_row(demo_seeds.row(RESULTS)) in capsys.readouterr().out


def test_a_line_tells_before_and_after_of_every_kind_and_the_rise():
    row = "grpo | 7 | 0.00 → 0.80 | 0.25 → 0.75 | +0.50 | 1.0 → 1.8 | 2.0 → 2.2 | 18 | 4.2"
    assert demo_seeds.row(RESULTS) == row.split(" | ")
    assert len(demo_seeds.header(RESULTS)) == len(demo_seeds.row(RESULTS))


def test_seeds_are_given_or_drawn_but_not_both(capsys):
    with pytest.raises(SystemExit):
        demo_seeds.main(["--seeds", "1", "--random", "2"])
    assert "not allowed with" in capsys.readouterr().err
