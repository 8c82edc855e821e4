"""Stages follow one another, go on after a kill at any point, and never share a folder with a live one."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rag_r1.runs.errors import RunError
from rag_r1.training import stages
from rag_r1.training.stages import check_stage_overrides, check_stages, main, run_stages, stage_overrides

RECIPES = ["recipes/one", "recipes/two"]
MODEL_KEY = "actor_rollout_ref.model.path="


class Killed(BaseException):
    """In the place of a SIGKILL: nothing after it runs."""


def value(overrides, key: str) -> str:
    """The value that counts: the last one given."""
    return [o.partition("=")[2].strip("'") for o in overrides if o.startswith(key)][-1]


class Trainer:
    """Trains three steps and saves after each, as veRL does: the model first and the tracker last. Resumes
    from the tracker. `kill_at` is (stage, step, before what)."""

    def __init__(self, kill_at=None):
        self.kill_at, self.calls, self.steps = kill_at, [], []

    def __call__(self, recipe, overrides):
        self.calls.append((recipe, list(overrides)))
        folder = Path(value(overrides, "trainer.default_local_dir="))
        stage = RECIPES.index(recipe) + 1
        tracker = folder / "latest_checkpointed_iteration.txt"
        done = int(tracker.read_text()) if tracker.exists() else 0
        for step in range(done + 1, 4):
            self._maybe_kill(stage, step, "step")
            self.steps.append((stage, step))
            saved = folder / f"global_step_{step}" / "actor" / "huggingface"
            saved.mkdir(parents=True, exist_ok=True)
            self._maybe_kill(stage, step, "model")
            (saved / "model.safetensors").write_text(f"stage {stage} step {step}")
            (saved.parents[1] / "data.pt").write_text("position")
            tracker.write_text("")
            self._maybe_kill(stage, step, "tracker")
            tracker.write_text(str(step))
        self._maybe_kill(stage, 3, "end")
        return 0

    def _maybe_kill(self, *point):
        if point == self.kill_at:
            raise Killed


def test_a_stage_starts_from_the_model_that_the_one_before_exported(tmp_path):
    trainer = Trainer()
    model = run_stages(RECIPES, tmp_path, [MODEL_KEY + "start"], trainer)
    (first, first_args), (second, second_args) = trainer.calls
    assert (first, second) == ("recipes/one", "recipes/two")
    assert value(first_args, MODEL_KEY) == "start"
    exported = tmp_path / "stage1" / "checkpoints" / "global_step_3" / "actor" / "huggingface"
    assert value(second_args, MODEL_KEY) == str(exported)
    assert (model / "model.safetensors").read_text() == "stage 2 step 3"


KILLS = [(stage, step, what) for stage in (1, 2) for step in (1, 3) for what in ("step", "model", "tracker")]


@pytest.mark.parametrize("kill_at", [*KILLS, (1, 3, "end"), (2, 3, "end")], ids=str)
def test_killed_anywhere_the_same_command_goes_on_and_ends_as_if_nothing_had_happened(tmp_path, kill_at):
    undisturbed, killed, again = Trainer(), Trainer(kill_at), Trainer()
    run_stages(RECIPES, tmp_path / "whole", [], undisturbed)
    with pytest.raises(Killed):
        run_stages(RECIPES, tmp_path / "cut", [], killed)
    model = run_stages(RECIPES, tmp_path / "cut", [], again)
    assert (model / "model.safetensors").read_text() == "stage 2 step 3"
    repeated = [step for step in killed.steps if step in again.steps]
    assert len(repeated) <= 1, "at most the step whose checkpoint was not whole"
    assert sorted(set(killed.steps + again.steps)) == undisturbed.steps


def test_what_is_finished_is_not_trained_again(tmp_path):
    first = run_stages(RECIPES, tmp_path, [], Trainer())
    trainer = Trainer()
    assert run_stages(RECIPES, tmp_path, [], trainer) == first
    assert trainer.calls == []


def test_a_moved_folder_goes_on_from_its_own_model(tmp_path):
    with pytest.raises(Killed):
        run_stages(RECIPES, tmp_path / "old", [], Trainer((2, 1, "step")))
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    trainer = Trainer()
    run_stages(RECIPES, tmp_path / "new", [], trainer)
    [(_, words)] = trainer.calls
    assert value(words, MODEL_KEY).startswith(str(tmp_path / "new" / "stage1"))
    (tmp_path / "new" / "stage1" / "finished").write_text("another\n")
    with pytest.raises(RunError, match="does not name a model: remove .*stage1/finished, and run again"):
        run_stages(RECIPES, tmp_path / "new", [], trainer)
    (tmp_path / "new" / "stage1" / "finished").unlink()
    again = Trainer()
    run_stages(RECIPES, tmp_path / "new", [], again)
    assert again.steps == [], "nothing that was trained is trained again"


def test_below_a_folder_named_checkpoints_the_model_is_that_of_the_stage(tmp_path):
    out = tmp_path / "checkpoints" / "mine"
    first = run_stages(RECIPES, out, [], Trainer())
    assert run_stages(RECIPES, out, [], Trainer()) == first and first.is_dir()


def test_overrides_are_for_all_stages_for_one_or_hold_the_stages_number(tmp_path):
    overrides = ["a=1", "stage2:a=2", "stage1:group/of=x", "data.train_files=data/stage{stage}/train.parquet"]
    first_args = stage_overrides(overrides, 1, tmp_path, None)
    second_args = stage_overrides(overrides, 2, tmp_path, Path("it's"))
    assert (value(first_args, "a="), value(second_args, "a=")) == ("1", "2")
    assert "group/of=x" in first_args and "group/of=x" not in second_args
    assert value(second_args, "data.train_files=") == "data/stage2/train.parquet"
    assert second_args[-1] == MODEL_KEY + "'it\\'s'" and not any(o.startswith(MODEL_KEY) for o in first_args)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stage3:a=1", "there is no stage 3, only 1 to 2"),
        ("stage0:a=1", "no stage 0"),
        ("a", "a is not key=value"),
        ("trainer.default_local_dir=elsewhere", "trainer.default_local_dir: "),
        ("stage2:+trainer.default_local_dir=elsewhere", "trainer.default_local_dir: "),
        ("stage2:" + MODEL_KEY + "other", "actor_rollout_ref.model.path: "),
        ("data.train_files=data/{stge}.parquet", "did you mean {stage}"),
    ],
)
def test_a_wrong_override_is_named_before_anything_is_trained(tmp_path, override, message):
    trainer = Trainer()
    with pytest.raises(RunError, match=message):
        run_stages(RECIPES, tmp_path, [override], trainer)
    assert trainer.calls == []


def test_a_failed_stage_ends_the_command_with_its_status(tmp_path):
    with pytest.raises(RunError, match=r"stage 1 \(recipes/one\) ended with status 3"):
        run_stages(RECIPES, tmp_path, [], lambda recipe, overrides: 3)
    assert not (tmp_path / "stage1" / "finished").exists()


def test_a_stage_that_exports_no_model_says_what_to_set(tmp_path):
    with pytest.raises(RunError, match=r"stage1.*save_contents=\[model,optimizer,extra,hf_model\]"):
        run_stages(RECIPES, tmp_path, [], lambda recipe, overrides: 0)


ORPHAN = """
import subprocess, sys
from pathlib import Path
from rag_r1.training.stages import run_stages
def train(recipe, overrides):
    process = subprocess.Popen(["sleep", "60"], close_fds=False)
    print(process.pid, flush=True)
    return process.wait()
run_stages(["r"], Path(sys.argv[1]), [], train)
"""


def test_a_training_that_outlives_a_killed_command_keeps_its_folder(tmp_path):
    command = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    orphan = int(command.stdout.readline())
    command.kill()
    command.wait()
    try:
        with pytest.raises(RunError, match="a training is still running in .*stage1"):
            run_stages(["r"], tmp_path, [], lambda recipe, overrides: 0)
    finally:
        subprocess.run(["kill", "-9", str(orphan)], check=True)
    for _ in range(100):  # until the orphan is gone
        try:
            run_stages(["r"], tmp_path, [], lambda recipe, overrides: 7)
        except RunError as error:
            if "status 7" in str(error):
                return
        time.sleep(0.1)
    pytest.fail("the lock was never released")


def test_the_command_names_what_is_wrong(tmp_path, capsys):
    assert main(["--recipe", "r", "--out", str(tmp_path), "stage2:a=1"]) == 1
    assert "there is no stage 2" in capsys.readouterr().err


def test_without_a_recipe_no_stage_is_said_not_to_exist(capsys):
    with pytest.raises(SystemExit):
        main(["stage9:a=1", "stage9:word"])
    message = capsys.readouterr().err
    assert "required: --recipe" in message and "stage9:word is not" in message and "stage9:a" not in message


def test_a_folder_that_cannot_be_used_hides_nothing_of_the_stages(tmp_path, monkeypatch, capsys):
    checked = []

    def check(recipe, overrides):
        checked.append(recipe)
        assert "word" not in overrides, "it would be reported twice"
        return 1

    monkeypatch.setattr(stages, "run_check", check)
    (tmp_path / "file").touch()
    recipes = ["word", "--recipe", "rag_r1/grpo", "--recipe", "none"]
    assert main([*recipes, "--out", str(tmp_path / "file")]) == 1
    message = capsys.readouterr().err
    assert checked == ["rag_r1/grpo"] and "there is no recipe 'none'" in message and "word is" in message
    assert "file is a file" in message and "the problems above, of stage 1" in message


def test_every_stage_that_is_left_is_checked_before_the_first_is_trained(tmp_path):
    calls = []

    def check(recipe, overrides):
        calls.append((recipe, value(overrides, MODEL_KEY)))
        return int(recipe != "one")

    overrides = [f"stage1:{MODEL_KEY}base", f"stage3:{MODEL_KEY}other"]
    with pytest.raises(RunError, match="nothing was started: .* of stage 2, 3"):
        check_stages(["one", "two", "three"], tmp_path, overrides, check)
    assert calls == [("one", "base"), ("two", "base"), ("three", "other")]
    (tmp_path / "stage1").mkdir()
    (tmp_path / "stage1" / "finished").touch()
    calls.clear()
    check_stages(["one", "one"], tmp_path, overrides[:1], check)  # the one that is left checks itself
    assert calls == []
    check_stages(["one", "one"], tmp_path, overrides[:1], check, all_stages=True)
    assert calls == [("one", "base")] * 2


def test_a_stage_without_a_number_is_named_with_the_right_form():
    with pytest.raises(RunError, match="stagex:b=2: write stage1:"):
        check_stage_overrides(["stagex:b=2"], 2)
