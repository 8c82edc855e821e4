"""Probes that would not be played, or could not be, are refused by their key before the run."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
from composed_recipes import composed
from omegaconf import OmegaConf, open_dict

from rag_r1.preflight.probes import check_probes
from rag_r1.preflight.settings import check_ours
from rag_r1.rows import QuestionRow, write_rows

pytestmark = pytest.mark.slow  # a composed recipe takes most of a second


def problems(rows: list[QuestionRow], folder: Path, *probes: str, **changes) -> list[str]:
    """What is wrong with a validation of these rows; `changes`: keys, with __ for a dot."""
    write_rows(folder / "val.parquet", rows)
    config = deepcopy(composed("recipes/rag_r1/ppo_mq"))
    OmegaConf.set_readonly(config, False)
    with open_dict(config):
        given = {"data__val_files": str(folder / "val.parquet"), "data__train_files": "train.parquet"}
        for key, value in {**given, "rag_r1__probes": list(probes), **changes}.items():
            OmegaConf.update(config, key.replace("__", "."), value)
    settings, _ = check_ours(config)
    return list(map(str, check_probes(config, settings)))


def row(split: str = "test", **metadata) -> QuestionRow:
    return QuestionRow("Who?", ("x",), id="q", split=split, protocol="rag_r1_mq", metadata=metadata)


NAMED = row(supporting_titles=["Rome"])


def test_probes_that_can_be_played_are_no_problem(tmp_path: Path):
    assert problems([row("train", supporting_titles=[]), NAMED], tmp_path, "empty", "withheld") == []
    assert problems([row("train")], tmp_path) == [], "without probes nothing is checked"


@pytest.mark.parametrize(
    ("rows", "changes", "what"),
    [
        ([row("train")], {}, "have extra_info.split train"),
        ([row()], {}, "no row of data.val_files names its gold passages"),
        (
            [row(supporting_titles=["Rome"])],
            {"data__custom_cls": {"path": None, "name": None}},
            "the data set",
        ),
        ([NAMED], {"data__train_files": "${data.val_files}"}, "are the same"),
        ([NAMED], {"rag_r1__retriever__topk": None}, "needs rag_r1.retriever.topk"),
    ],
)
def test_probes_that_could_not_be_played_are_refused(tmp_path: Path, rows, changes, what):
    [problem] = problems(rows, tmp_path, "closed_book", "withheld", **changes)
    assert problem.startswith("error: rag_r1.probes: ") and what in problem
