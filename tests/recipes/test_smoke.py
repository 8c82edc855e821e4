"""The smoke run on real questions and passages, and its check of the trajectories."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rag_r1.preflight.settings import check_given, check_lengths, check_ours, check_verl
from rag_r1.train import RECIPES, Recipe, compose_recipe

_spec = importlib.util.spec_from_file_location("smoke_run", RECIPES / "smoke" / "run.py")
smoke_run = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(smoke_run)


def record(status: str = "answered", documents: int = 3) -> dict[str, Any]:
    return {"status": status, "turns": [{"documents": [[{"id": "1", "contents": "x"}] * documents]}]}


def dump(folder: Path, **splits: list[dict[str, Any]]) -> Path:
    for split, records in splits.items():
        (folder / split).mkdir(parents=True)
        (folder / split / "step_000001-1.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder


def test_the_recipe_passes_verls_validation_on_a_cpu(model_folder: Path):
    given = [f"actor_rollout_ref.model.path={model_folder}", "data.train_files=a", "data.val_files=b"]
    config = compose_recipe(
        Recipe.find("recipes/smoke/hotpotqa"), [*given, "rag_r1.retriever.url=http://127.0.0.1:1"]
    )
    assert config.trainer.device == "cpu"
    assert check_given(config) + check_ours(config)[1] + check_lengths(config) == []
    assert check_verl(config, model_is_there=True) == []


def test_data_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(smoke_run.SmokeError, match=r"hotpotqa_corpus\.jsonl\.gz.*RAG_R1_DATA"):
        smoke_run.Inputs.find(tmp_path)


def test_right_trajectories_are_counted(tmp_path: Path):
    folder = dump(tmp_path, train=[record(), record("turn_limit")], test=[record()])
    counts = smoke_run.check(folder, {"train": 2, "test": 1})
    assert counts["trajectories"] == {"train": 2, "test": 1}
    assert counts["statuses"] == {"answered": 2, "turn_limit": 1}
    assert counts["passages"] == 9


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([record()], "1, 'test': 0"),
        ([record(), record("tool_failure")], "tool_failure"),
        ([record(), record("bad_row")], "bad_row"),
        ([record(documents=0), record(documents=0)], "no search brought a passage"),
    ],
)
def test_wrong_trajectories_fail_the_run(tmp_path: Path, records: list, words: str):
    with pytest.raises(smoke_run.SmokeError, match=words):
        smoke_run.check(dump(tmp_path, train=records), {"train": 2, "test": 0})


def test_expected_trajectories_follow_the_overrides():
    assert smoke_run.expected_trajectories() == {"train": 2 * 8 * 4, "test": 16}
    changed = smoke_run.expected_trajectories(
        ["trainer.total_training_steps=3", "data.val_max_samples=4", "rag_r1.retriever.topk=1"]
    )
    assert changed == {"train": 3 * 8 * 4, "test": 4}


@pytest.mark.e2e
@pytest.mark.parametrize("backend", ["bm25", "dense"])
def test_the_pipeline_runs_on_real_questions_and_passages(tmp_path: Path, backend: str):
    try:
        inputs = smoke_run.Inputs.find(smoke_run.data_folder())
    except smoke_run.SmokeError as error:
        pytest.skip(f"left out: {error}")
    counts = smoke_run.smoke(inputs, backend, tmp_path, ["trainer.total_training_steps=1"], timeout_s=1000)
    assert counts["trajectories"] == {"train": 1 * 8 * 4, "test": 16}
    assert counts["passages"] > 0
