"""Good checkpoints are kept whatever veRL removes, a run goes back to one, and its learning rate changes."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.inference.model_folders import TRACKER
from rag_r1.runs.errors import RunError
from rag_r1.training.checkpoint_steps import saved_checkpoints
from rag_r1.training.guard.checkpoints import Checkpoints, surplus
from rag_r1.training.guard.learning_rate import set_learning_rate


def save(folder: Path, step: int, content: str = "weights") -> Path:
    """A checkpoint as veRL writes it, its tracker last."""
    path = folder / f"global_step_{step}" / "actor"
    path.mkdir(parents=True)
    (path / "model.pt").write_text(content)
    (folder / TRACKER).write_text(str(step))
    return path / "model.pt"


def test_a_kept_checkpoint_takes_no_room_until_verl_removes_its_own(tmp_path):
    checkpoints, file = Checkpoints(tmp_path, 3), save(tmp_path, 2)
    checkpoints.keep(2)
    kept = checkpoints.path(2) / "actor" / "model.pt"
    assert os.path.samefile(file, kept)
    shutil.rmtree(tmp_path / "global_step_2")
    assert kept.read_text() == "weights" and checkpoints.kept_steps() == [2]


def test_a_checkpoint_that_is_not_whole_or_not_yet_judged_is_not_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, 3)
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / "global_step_3").mkdir()
    checkpoints.keep(1)
    assert checkpoints.kept_steps() == [1]
    checkpoints.keep(9)
    assert checkpoints.kept_steps() == [1, 2]


def test_a_checkpoint_whose_actor_verl_has_removed_is_not_kept(tmp_path):
    """A run that was not supervised before: veRL leaves the folder and the data loader's state."""
    for step in (1, 2, 3):
        save(tmp_path, step)
        (tmp_path / f"global_step_{step}" / "data.pt").touch()
    shutil.rmtree(tmp_path / "global_step_1" / "actor")
    checkpoints = Checkpoints(tmp_path, 9)
    checkpoints.keep(3)
    assert checkpoints.kept_steps() == [2, 3] and checkpoints.newest_up_to(1) is None


def test_a_checkpoint_that_verl_removes_while_it_is_linked_is_not_kept(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def removed_meanwhile(source, part, **options):
        monkeypatch.undo()
        (source / "actor" / "model.pt").unlink()
        shutil.copytree(source, part, **options)
        shutil.rmtree(source / "actor")

    monkeypatch.setattr(shutil, "copytree", removed_meanwhile)
    checkpoints = Checkpoints(tmp_path, 9)
    checkpoints.keep(1)
    assert list((tmp_path / "kept").iterdir()) == []


def fill_disk(monkeypatch, *names: str) -> list[object]:
    """Make these functions of `os` and `shutil` find a full disk, and return the arguments of their calls."""
    calls: list[object] = []

    def full(*paths, **options):
        calls.append(paths)
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in names:
        monkeypatch.setattr(os if hasattr(os, name) else shutil, name, full)
    return calls


@pytest.mark.parametrize("names", [("link", "copy2"), ("makedirs",)])
def test_a_checkpoint_for_which_there_is_no_room_is_named_and_not_copied_again(
    names, tmp_path, monkeypatch, capsys
):
    save(tmp_path, 1)
    calls = fill_disk(monkeypatch, *names)
    checkpoints = Checkpoints(tmp_path, 9)
    for _ in range(2):
        checkpoints.keep(1)
    assert len(calls) == len(names) and checkpoints.kept_steps() == []
    said = capsys.readouterr().out
    assert said.count(f"{tmp_path / 'global_step_1'} cannot be kept: [Errno 28] No space") == 1


@pytest.mark.parametrize("names", [("link", "copy2"), ("makedirs",)])
def test_a_run_that_cannot_go_back_for_lack_of_room_does_so_when_there_is_some(names, tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, 9)
    for step in (2, 4):
        save(tmp_path, step, f"step {step}")
        checkpoints.keep(step)
    with monkeypatch.context() as patch:
        fill_disk(patch, *names)
        with pytest.raises(RunError, match=r"kept/global_step_2 cannot be copied .*No space.*make room"):
            checkpoints.go_back(2)
    checkpoints.go_back(2)
    assert (tmp_path / "global_step_2" / "actor" / "model.pt").read_text() == "step 2"
    assert (tmp_path / TRACKER).read_text() == "2" and checkpoints.kept_steps() == [2]


def test_a_removal_that_is_interrupted_leaves_no_part_that_a_run_could_go_back_to(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, 2)
    for step in (1, 2):
        save(tmp_path, step)
        checkpoints.keep(step)
    save(tmp_path, 3)
    remove = shutil.rmtree

    def kill(path, **options):
        remove(path / "actor", **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", lambda path, **o: kill(path) if path.exists() else remove(path, **o))
        checkpoints.keep(3)
    kept = checkpoints.kept_steps()
    assert kept and all((checkpoints.path(step) / "actor" / "model.pt").exists() for step in kept)
    checkpoints.keep(3)
    assert len(checkpoints.kept_steps()) == 2


def test_a_run_goes_back_and_what_came_later_is_gone(tmp_path):
    checkpoints = Checkpoints(tmp_path, 9)
    for step in (2, 4, 6):
        save(tmp_path, step, f"step {step}")
        checkpoints.keep(step)
    shutil.rmtree(tmp_path / "global_step_2")
    checkpoints.go_back(2)
    assert set(saved_checkpoints(tmp_path)) == {2} and checkpoints.kept_steps() == [2]
    assert (tmp_path / "global_step_2" / "actor" / "model.pt").read_text() == "step 2"
    assert (tmp_path / TRACKER).read_text() == "2"


def test_without_a_good_checkpoint_a_run_begins_anew(tmp_path):
    checkpoints = Checkpoints(tmp_path, 9)
    save(tmp_path, 2)
    checkpoints.keep(2)
    assert checkpoints.newest_up_to(1) is None
    checkpoints.go_back(None)
    assert (
        not saved_checkpoints(tmp_path) and not checkpoints.kept_steps() and not (tmp_path / TRACKER).exists()
    )


@given(st.integers(1, 60), st.integers(1, 8))
def test_the_older_the_kept_ones_the_further_apart(last, count):
    kept: list[int] = []
    for step in range(1, last + 1):
        kept.append(step)
        gone = surplus(kept, count)
        kept = [known for known in kept if known not in gone]
    assert kept[-1] == last and len(kept) == min(last, count)
    if count >= 7:  # about the logarithm of the steps, to the base 2
        # So there is one from before a sign, at most as far before it again as the sign is old.
        for since in range(2, last + 1):
            assert any(step <= since for step in kept)
            newest = max(step for step in kept if step <= since)
            assert since - newest <= 2 * (last - since) + 2 or newest == kept[0]


def _state(actor: Path, rates: list[float], lr: list[float]) -> None:
    actor.mkdir(parents=True)
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([{"params": [parameter], "lr": lr[0]}])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    parameter.sum().backward()
    optimizer.step()
    scheduler.step()
    import numpy as np

    rng = {"cpu": torch.get_rng_state(), "numpy": np.random.get_state(), "random": (3, (1, 2), None)}
    extra = {"lr_scheduler": {**scheduler.state_dict(), "base_lrs": rates, "_last_lr": lr}, "rng": rng}
    torch.save(extra, actor / "extra_state_world_size_1_rank_0.pt")
    torch.save(optimizer.state_dict(), actor / "optim_world_size_1_rank_0.pt")


def test_the_learning_rate_of_optimizer_and_scheduler_changes_and_nothing_else(tmp_path):
    actor = tmp_path / "actor"
    _state(actor, [1e-3], [5e-4])  # half-way down a schedule
    other_name = tmp_path / "kept.pt"
    os.link(actor / "optim_world_size_1_rank_0.pt", other_name)
    set_learning_rate(actor, 1e-4)
    extra = torch.load(actor / "extra_state_world_size_1_rank_0.pt", weights_only=False)
    optimizer = torch.load(actor / "optim_world_size_1_rank_0.pt")
    before = torch.load(other_name)
    assert extra["lr_scheduler"]["base_lrs"] == pytest.approx([1e-4])
    assert extra["lr_scheduler"]["_last_lr"] == pytest.approx([5e-5])
    assert extra["rng"]["random"] == (3, (1, 2), None)
    assert optimizer["param_groups"][0]["lr"] == pytest.approx(5e-5)
    assert before["param_groups"][0]["lr"] == pytest.approx(5e-4)  # the kept file is not written into
    assert torch.equal(optimizer["state"][0]["exp_avg"], before["state"][0]["exp_avg"])


def test_a_checkpoint_without_an_optimizer_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(RunError, match="save_contents"):
        set_learning_rate(tmp_path, 1e-4)


@pytest.mark.parametrize("data", [b"", b"PK", b"PK\x03\x04 cut off", b"\x80\x02}q\x00."])
def test_a_state_that_is_cut_off_is_refused_by_its_name(tmp_path, data):
    (tmp_path / "extra_state_world_size_1_rank_0.pt").write_bytes(data)
    with pytest.raises(RunError, match="extra_state_world_size_1_rank_0.pt cannot be read: ."):
        set_learning_rate(tmp_path, 1e-4)


def test_a_checkpoint_without_a_scheduler_is_refused_with_the_remedy(tmp_path):
    _state(tmp_path / "actor", [1e-3], [1e-3])
    torch.save({"lr_scheduler": None}, tmp_path / "actor" / "extra_state_world_size_1_rank_0.pt")
    with pytest.raises(RunError, match="start a new training"):
        set_learning_rate(tmp_path / "actor", 1e-4)


class _Runs:
    def __reduce__(self):
        return (os.mkdir, ("made-by-a-pickle",))


def test_no_code_of_a_checkpoint_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _state(tmp_path / "actor", [1e-3], [1e-3])
    torch.save({"lr_scheduler": _Runs()}, tmp_path / "actor" / "extra_state_world_size_1_rank_0.pt")
    with pytest.raises(RunError, match="extra_state_world_size_1_rank_0.pt cannot be read"):
        set_learning_rate(tmp_path / "actor", 1e-4)
    assert not (tmp_path / "made-by-a-pickle").exists()
