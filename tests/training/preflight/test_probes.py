"""Probes that would not be played, or could not be, are refused by their key before the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rag_r1.data.rows import QuestionRow, write_rows
from rag_r1.io.errors import DataError
from rag_r1.training.preflight import probes as preflight_probes
from rag_r1.training.preflight.probes import check_probes
from rag_r1.training.preflight.settings import check_rag_r1_keys
from tests.recipes.composed_recipes import changed, composed

pytestmark = pytest.mark.slow  # a composed recipe takes most of a second


def problems(rows: list[QuestionRow], folder: Path, *probes: str, **changes) -> list[str]:
    """What is wrong with a validation of these rows; `changes`: keys, with __ for a dot."""
    write_rows(folder / "val.parquet", rows)
    files = {"data__val_files": str(folder / "val.parquet"), "data__train_files": "train.parquet"}
    config = composed("recipes/rag_r1/ppo_mq")
    config = changed(config, **{**files, "rag_r1__probes": list(probes), **changes})
    settings, _ = check_rag_r1_keys(config)
    return list(map(str, check_probes(config, settings)))


def row(split: str = "test", **metadata) -> QuestionRow:
    return QuestionRow("Who?", ("x",), id="q", split=split, protocol="rag_r1_mq", metadata=metadata)


NAMED = row(supporting_titles=["Rome"])


def passages(folder: Path, **changes) -> str:
    """A file with a passage about Rome and ten random ones; returns its name."""
    drawn = [[-i, str(100 + i), "x"] for i in range(10)]
    value = {"done": True, "by_id": [], "by_title": {"rome": [["1", '"Rome"\nA city.']]}, "drawn": drawn}
    (folder / "passages.json").write_text(json.dumps({**value, **changes}))
    return str(folder / "passages.json")


def test_probes_that_can_be_played_are_no_problem(tmp_path: Path):
    assert problems([row("train", supporting_titles=[]), NAMED], tmp_path, "empty", "withheld") == []
    assert problems([row("train")], tmp_path) == [], "without probes nothing is checked"
    all_of_them = ("closed_book", "empty", "random", "gold", "withheld")
    rows, file = [row(supporting_titles=["Po"]), row(), NAMED], passages(tmp_path)
    assert problems(rows, tmp_path, *all_of_them, rag_r1__probe_passages=file) == []
    missing = str(tmp_path / "no such")
    assert problems([row()], tmp_path, "empty", rag_r1__probe_passages=missing) == [], "none is shown"
    [unread] = problems([row()], tmp_path, rag_r1__probe_passages=missing)
    assert unread.startswith("warning: rag_r1.probe_passages: ")


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        ([row("train")], {}, "have extra_info.split train"),
        ([row()], {}, "no row of data.val_files names its gold passages"),
        ([NAMED], {"data__custom_cls": {"path": None, "name": None}}, "the data set"),
        ([NAMED], {"data__train_files": "${data.val_files}"}, "are the same"),
        ([NAMED], {"rag_r1__retriever__topk": None}, "needs rag_r1.retriever.topk"),
    ],
)
def test_probes_that_could_not_be_played_are_refused(tmp_path: Path, rows, changes, message):
    [problem] = problems(rows, tmp_path, "closed_book", "withheld", **changes)
    assert problem.startswith("error: rag_r1.probes: ") and message in problem


@pytest.mark.parametrize(
    ("probe", "rows", "changes", "message"),
    [
        ("gold", [NAMED], {"done": False}, "interrupted or refused"),
        ("random", [NAMED], {"drawn": 5}, "is not a file of passages (drawn: "),
        ("withheld", [NAMED], {"by_id": {}}, "is not a file of passages (by_id: "),
        ("gold", [NAMED], {"by_title": {}}, "has the gold passages of no row of data.val_files"),
        ("gold", [row(supporting_titles=["Rome", "Po"])], {}, "has the gold passages of no row"),
        ("random", [row()], {"drawn": [[-i, str(i), "x"] for i in range(6)]}, "6 random passages, "),
        (
            "random",
            [row(), NAMED],
            {"drawn": [[-i, str(i), '"Rome"\nx' if i else "x"] for i in range(7)]},
            "needs more than 6 beside each question's gold ones",
        ),
    ],
)
def test_a_file_of_passages_that_the_probes_cannot_show_is_refused_by_its_name(
    tmp_path: Path, probe, rows, changes, message
):
    file = passages(tmp_path, **changes)
    [problem] = problems(rows, tmp_path, probe, rag_r1__probe_passages=file)
    assert problem.startswith(f"error: rag_r1.probe_passages: {file} ") and message in problem
    assert "\n    -> " in problem and ("probe-passages" in problem or "once more" in problem)


def test_a_file_of_passages_that_is_missing_is_told_with_the_command_that_makes_it(tmp_path: Path):
    missing = str(tmp_path / "no such.json")
    [problem] = problems([NAMED], tmp_path, "gold", "random", rag_r1__probe_passages=missing)
    assert problem.startswith(f"error: rag_r1.probe_passages: {missing} cannot be read")
    assert "-> make it with `rag-r1 probe-passages" in problem
    assert problems([NAMED], tmp_path, "gold", "random") == [], "told with the other keys"


def test_gold_without_a_row_that_names_its_passages_is_no_fault_of_the_file(tmp_path: Path):
    [problem] = problems([row()], tmp_path, "gold", "withheld", rag_r1__probe_passages=passages(tmp_path))
    assert problem.startswith("error: rag_r1.probes: no row of data.val_files names its gold passages")
    assert "which gold, withheld needs" in problem


def test_the_whole_preflight_names_the_key_of_a_file_that_is_not_given():
    config = composed("recipes/rag_r1/ppo_mq", "rag_r1.probes=[gold]")
    texts = [p.what for p in check_rag_r1_keys(config)[1] if p.where == "rag_r1.probe_passages"]
    assert len(texts) == 1 and "`rag-r1 probe-passages`" in texts[0]


def test_rows_that_unpack_to_too_much_are_left_to_the_check_of_the_data(tmp_path: Path, monkeypatch):
    def refuse(path: str):
        raise DataError(f"{path}: takes too much memory: leave these rows out")

    monkeypatch.setattr(preflight_probes, "read_rows", refuse)
    assert problems([NAMED], tmp_path, "withheld") == []


def test_the_data_set_must_be_given_the_file_too(tmp_path: Path):
    changes = {"rag_r1__probe_passages": passages(tmp_path), "data__probe_passages": None}
    [problem] = problems([NAMED], tmp_path, "gold", **changes)
    assert problem.startswith("error: rag_r1.probes: ") and "data.probe_passages" in problem
