"""The report on the real small model, on a few records made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_process.passage_questions.questions import KINDS
from examples.real_small.report import as_text, curve_table, kinds_table, main, training_log
from tests.explorer.made_records import record, write


def made(name: str, em: float | None = 1.0, **more: object) -> dict:
    return {**record(name, split="val", **more), "rewards": {"em": em}, "golds": ["Karlen Ford"]}


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The words of the command, with a training of one validation and an evaluation of two records."""
    write(tmp_path / "grpo" / "trajectories" / "val" / "step_000001-1.jsonl", [made("a", step=1)])
    write(tmp_path / "evals" / "sft" / "new" / "trajectories" / "records.jsonl", [made("a"), made("b", 0.0)])
    return ["--grpo", str(tmp_path / "grpo"), "--out", str(tmp_path / "report")]


def test_all_trajectories_of_a_short_evaluation_are_printed(words, tmp_path):
    evals = ["--evals", str(tmp_path / "evals"), "--trajectories", "sft/new"]
    assert main([*words, *evals]) == 0
    text = (tmp_path / "report" / "trajectories.md").read_text()
    assert text.count("(right)") == text.count("(wrong; right: Karlen Ford)") == 1
    assert "| sft | 2 |" in (tmp_path / "report" / "real_model.md").read_text()


@pytest.mark.parametrize(("with_evals", "remedy"), [(True, "give one of sft/new"), (False, "give --evals")])
def test_a_wrong_evaluation_is_named_before_anything_is_written(words, tmp_path, capsys, with_evals, remedy):
    evals = ["--evals", str(tmp_path / "evals")] if with_evals else []
    assert main([*words, *evals, "--trajectories", "sft/old"]) == 1
    assert remedy in capsys.readouterr().err and not (tmp_path / "report").exists()


def test_a_kind_that_a_training_lacks_keeps_its_place():
    _, [row] = curve_table([{1: [made("a")]}, {1: [made(f"{KINDS[0]}-1", 0.5)]}])
    assert row[2] == "–, 0.50"


def test_the_interval_counts_only_answers_with_a_score():
    scored = [made("a"), made("b", 0.0)]
    _, [full, part, empty] = kinds_table({"full": scored, "part": [*scored, made("c", None)], "empty": []})
    assert full[2] == part[2] and empty[2] == "– [–, –]"


def test_the_last_run_of_a_step_counts_and_a_line_that_was_cut_off_is_skipped(tmp_path):
    lines = [{"step": 1, "data": {"a": 1.0}}, {"step": 1, "data": {"a": 2.0}}]
    (tmp_path / "metrics-1.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 2')
    assert training_log(tmp_path) == {1: {"a": 2.0}}


def test_an_answer_without_a_score_is_not_called_wrong():
    assert "(not judged; right: Karlen Ford)" in as_text(made("a", None))


def test_each_line_of_a_trajectory_is_indented_so_that_none_is_markup():
    text = as_text({**made("a"), "question": "Which town?\n# A. Ulm"})
    assert "    # A. Ulm (right)" in text and all(line.startswith("    ") for line in text.splitlines())
