"""`--hours`: a training ends in time, after its last checkpoint that fits, and says how to go on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from rag_r1.config.guard import GuardOptions
from rag_r1.inference.model_folders import TRACKER
from rag_r1.options.command_exit import ExitStatus
from rag_r1.runs.processes import run_child_until
from rag_r1.training import launch
from rag_r1.training.checkpoint_steps import last_whole_step
from rag_r1.training.command import main as train
from rag_r1.training.guard.signs import TrainingFacts
from rag_r1.training.guard.watched_run import WatchedRun
from rag_r1.training.time_limit import TimeLimit, check_resume, folder_bytes


class Clock:
    """Seconds that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def limit_of(folder: Path, hours: float) -> tuple[TimeLimit, Clock]:
    clock = Clock()
    return TimeLimit(hours, folder, clock=clock), clock


def save(folder: Path, step: int) -> None:
    (folder / TRACKER).write_text(str(step))


def test_it_ends_after_the_checkpoint_from_which_the_next_would_not_be_reached(tmp_path):
    limit, clock = limit_of(tmp_path, 1.0)
    for seconds, step in ((1500, 5), (2500, 10)):
        clock.now = seconds
        save(tmp_path, step)
        if step == 5:
            assert not limit.is_over()
    assert limit.is_over()  # 2500 and the longest time between two, 1500, are more than an hour
    assert "the checkpoint of step 10" in limit.finish()


def test_without_a_checkpoint_it_ends_at_the_limit_and_not_before(tmp_path):
    limit, clock = limit_of(tmp_path, 1.0)
    clock.now = 3599
    assert not limit.is_over()
    clock.now = 3600
    assert limit.is_over() and "no checkpoint yet" in limit.finish()


def test_a_checkpoint_of_an_earlier_piece_ends_nothing(tmp_path):
    save(tmp_path, 20)
    limit, clock = limit_of(tmp_path, 1.0)
    clock.now = 3000
    assert not limit.is_over()


@given(gaps=st.lists(st.floats(1, 2000), min_size=1, max_size=30), hours=st.floats(0.01, 3))
def test_a_training_of_equal_or_shorter_steps_loses_no_step(tmp_path_factory, gaps, hours):
    """Once a checkpoint is there, and no later one takes longer, it ends right after one."""
    folder = tmp_path_factory.mktemp("run")
    limit, clock = limit_of(folder, hours)
    for step, gap in enumerate(sorted(gaps, reverse=True), 1):
        clock.now += gap
        if clock.now >= 3600 * hours and step == 1:
            return  # the first one did not fit, which cannot be known
        save(folder, step)
        if limit.is_over():
            assert clock.now <= 3600 * hours
            return


def test_the_folder_to_be_carried_is_named_with_its_size(tmp_path):
    limit, _ = limit_of(tmp_path, 2.5)
    (tmp_path / "weights").write_bytes(bytes(300_000_000))
    assert f"the folder {tmp_path} (0.3 GB)" in limit.finish() and "of 2.5 hours" in limit.finish()


def test_a_file_that_vanishes_while_the_folder_is_measured_counts_nothing(tmp_path, monkeypatch):
    for name in ("kept", "pruned"):
        (tmp_path / name).write_bytes(b"12345")
    names = next(os.walk(tmp_path))
    (tmp_path / "pruned").unlink()
    monkeypatch.setattr(os, "walk", lambda _: [names])
    assert folder_bytes(tmp_path) == 5


def test_the_folder_does_not_grow_from_piece_to_piece(tmp_path, monkeypatch):
    """veRL does not know the checkpoints of an earlier piece, and leaves them."""
    for step in (5, 10, 15, 20):
        (tmp_path / f"global_step_{step}").mkdir()
    (tmp_path / "global_step_notes").mkdir()
    save(tmp_path, 15)
    limit = TimeLimit(1.0, tmp_path, keep=1)
    assert steps_in(tmp_path) == {15}  # 20 was being written when the piece ended
    (tmp_path / "global_step_20").mkdir()
    save(tmp_path, 20)
    assert "step 20" in limit.finish() and steps_in(tmp_path) == {20}
    assert (tmp_path / "global_step_notes").exists()
    (tmp_path / "global_step_25").mkdir()
    monkeypatch.setattr("os.rmdir", Mock(side_effect=OSError("not empty")))
    assert "step 20" in limit.finish(), "a worker may still write into the last one"


@pytest.mark.parametrize("keep", [None, -1, 0])
def test_without_a_number_every_checkpoint_stays(tmp_path, keep):
    for step in (5, 10):
        (tmp_path / f"global_step_{step}").mkdir()
    save(tmp_path, 10)
    TimeLimit(1.0, tmp_path, keep).finish()
    assert steps_in(tmp_path) == {5, 10}


def steps_in(folder: Path) -> set[int]:
    return {int(path.name[12:]) for path in folder.glob("global_step_[0-9]*")}


@pytest.mark.parametrize("text", ["", "no number"])
def test_a_tracker_that_is_being_written_counts_as_none(tmp_path, text):
    (tmp_path / TRACKER).write_text(text)
    assert last_whole_step(tmp_path) is None


def test_a_checkpoint_whose_tracker_is_being_written_ends_nothing_yet(tmp_path):
    limit, clock = limit_of(tmp_path, 1.0)
    clock.now = 1700
    save(tmp_path, 5)
    assert not limit.is_over()
    (tmp_path / TRACKER).write_text("")
    clock.now = 3500
    assert not limit.is_over(), "its step is not known, and veRL would be stopped before it writes it"
    save(tmp_path, 10)
    assert limit.is_over() and "the checkpoint of step 10" in limit.finish()


def test_a_training_that_is_over_is_ended_and_one_that_ends_by_itself_keeps_its_status():
    waits = [sys.executable, "-c", "import signal; signal.pause()"]
    assert run_child_until(lambda: True, waits) is None
    assert run_child_until(lambda: False, [sys.executable, "-c", "raise SystemExit(7)"]) == 7


def test_the_launcher_ends_with_the_status_of_what_goes_on_later(tmp_path, monkeypatch, capsys):
    ended = []
    monkeypatch.setattr(launch, "run_child_until", lambda is_over, command: ended.append(is_over))
    monkeypatch.setattr(launch, "warn_of_other_trainings", lambda: None)
    (tmp_path / TRACKER).write_text("")
    run = WatchedRun(tmp_path, GuardOptions(), TrainingFacts(), 1e-6, checkpoints=2)
    assert launch.main(["--hours=0.5", run.to_json(), str(tmp_path), "recipe"]) == ExitStatus.STOPPED
    assert ended and str(tmp_path) in capsys.readouterr().out
    assert not (tmp_path / TRACKER).exists(), "veRL fails at an empty one, which a kill can leave"


@pytest.mark.parametrize(
    ("mode", "path", "keys"),
    [
        ("auto", None, []),
        ("auto", "run/global_step_2", ["trainer.resume_from_path"]),
        ("disable", None, ["trainer.resume_mode"]),
        ("resume_path", "run/global_step_2", ["trainer.resume_mode"]),
    ],
)
def test_a_recipe_that_does_not_resume_from_its_last_checkpoint_is_no_training_in_pieces(mode, path, keys):
    config = OmegaConf.create({"trainer": {"resume_mode": mode, "resume_from_path": path}})
    assert [problem.where for problem in check_resume(config)] == keys


@pytest.mark.parametrize("hours", ["0", "-1", "nan", "soon"])
def test_hours_that_are_none_are_refused(hours, capsys):
    with pytest.raises(SystemExit):
        train(["--recipe", "demo/grpo", "--hours", hours])
    assert "--hours" in capsys.readouterr().err
