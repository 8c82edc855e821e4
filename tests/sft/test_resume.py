"""A fine-tuning that is resumed at the end of an epoch begins the next one; elsewhere it goes on within it.

e2e/test_pipeline.py kills and resumes a real one.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig, OmegaConf

from rag_r1.inference.model_folders import TRACKER
from rag_r1.sft.resume import drop_exhausted_loader_state, steps_of_epoch

#: Of each file; in batches of 4 the two are five steps, and two rows are dropped.
ROWS = (15, 7)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name, rows in zip("ab", ROWS, strict=True):
        pq.write_table(pa.table({"id": list(range(rows))}), tmp_path / f"{name}.parquet")
    for step in (4, 5, 10):
        folder = tmp_path / f"global_step_{step}"
        folder.mkdir()
        for name in ("data_0.pt", "data_1.pt", "model_world_size_2_rank_0.pt"):
            (folder / name).touch()
    (tmp_path / TRACKER).write_text("5")
    return tmp_path


def config_of(run: Path, limit: int = -1, **trainer: object) -> DictConfig:
    data = {"train_files": [str(run / "a.parquet"), str(run / "b.parquet")], "train_batch_size": 4}
    return OmegaConf.create({"data": {**data, "train_max_samples": limit}, "trainer": trainer})


def states(run: Path, step: int) -> list[str]:
    return sorted(path.name for path in (run / f"global_step_{step}").iterdir())


WHOLE, WITHOUT = ["data_0.pt", "data_1.pt", "model_world_size_2_rank_0.pt"], ["model_world_size_2_rank_0.pt"]


def test_at_the_end_of_an_epoch_the_loader_begins_anew(run):
    assert drop_exhausted_loader_state(run, config_of(run))
    assert (states(run, 4), states(run, 5), states(run, 10)) == (WHOLE, WITHOUT, WHOLE)
    assert not drop_exhausted_loader_state(run, config_of(run)), "there is nothing left to remove"


def test_within_an_epoch_the_loader_goes_on(run):
    (run / TRACKER).write_text("4\n")
    assert not drop_exhausted_loader_state(run, config_of(run)) and states(run, 4) == WHOLE


def test_the_checkpoint_is_the_one_that_verl_resumes_from(run):
    assert not drop_exhausted_loader_state(run, config_of(run, resume_mode="disable"))
    named = config_of(run, resume_mode="resume_path", resume_from_path=str(run / "global_step_10"))
    assert drop_exhausted_loader_state(run, named)
    assert (states(run, 5), states(run, 10)) == (WHOLE, WITHOUT)


def test_a_limit_of_the_samples_shortens_the_epoch(run):
    assert steps_of_epoch(config_of(run).data) == 5
    assert steps_of_epoch(config_of(run, limit=16).data) == 4
    assert steps_of_epoch(config_of(run, limit=1000).data) == 5
    (run / TRACKER).write_text("4")
    assert drop_exhausted_loader_state(run, config_of(run, limit=16)) and states(run, 4) == WITHOUT


@pytest.mark.parametrize("latest", [None, "", "7", "many"])
def test_without_a_checkpoint_nothing_is_done(run, latest):
    (run / TRACKER).unlink() if latest is None else (run / TRACKER).write_text(latest)
    assert not drop_exhausted_loader_state(run, config_of(run))
    assert all(states(run, step) == WHOLE for step in (4, 5, 10))
