"""A learning rate that was changed before a resume is refused: veRL would go on with the old one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from rag_r1.sandbox.torch_checkpoint import plain_values
from rag_r1.training.preflight.resume import (
    check_resume_path,
    check_resumed_rates,
    check_resumed_sft_rate,
    resumed_from,
)
from tests.recipes.composed_recipes import composed

ACTOR, CRITIC = "actor_rollout_ref.actor.optim.lr", "critic.optim.lr"


def save(folder: Path, rate: float, step: int = 3) -> None:
    """The state of a scheduler in its warm-up, beside random states, as veRL saves it."""
    from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager
    from verl.utils.torch_functional import get_constant_schedule_with_warmup

    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=rate)
    scheduler = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=10)
    for _ in range(step):
        optimizer.step()
        scheduler.step()
    folder.mkdir(parents=True)
    state = {"lr_scheduler": scheduler.state_dict(), "rng": BaseCheckpointManager.get_rng_state()}
    torch.save(state, folder / "extra_state_world_size_8_rank_0.pt")


def run_folder(out: Path, *, actor: float, critic: float = 1e-5) -> Path:
    """A run that was saved at step 20."""
    save(out / "global_step_20" / "actor", actor)
    save(out / "global_step_20" / "critic", critic)
    (out / "latest_checkpointed_iteration.txt").write_text("20")
    return out


def resuming(out: Path, *overrides: str, name: str = "recipes/rag_r1/ppo_mq"):
    return composed(name, f"trainer.default_local_dir={out}", *overrides)


@pytest.mark.slow
def test_the_same_rates_are_resumed_even_in_the_warm_up(tmp_path):
    config = resuming(run_folder(tmp_path / "run", actor=1e-6))
    assert resumed_from(config) == tmp_path / "run" / "global_step_20"
    assert [*check_resumed_rates(config, critic=True)] == []


@pytest.mark.slow
def test_a_changed_rate_is_refused_with_its_key_both_values_and_what_to_do(tmp_path):
    out = run_folder(tmp_path / "run", actor=1e-6)
    config = resuming(out, f"{ACTOR}=2e-6", f"{CRITIC}=3e-5")
    actor, critic = check_resumed_rates(config, critic=True)
    assert (actor.level, actor.where, critic.where) == ("error", ACTOR, CRITIC)
    assert "is 2e-06" in actor.what and "was trained with 1e-06" in actor.what and str(out) in actor.what
    assert f"set {ACTOR}=1e-06" in actor.remedy and f"set {CRITIC}=1e-05" in critic.remedy
    assert [*check_resumed_rates(config, critic=False)] == [actor], "without a critic there is no rate of it"


@pytest.mark.slow
def test_where_nothing_is_restored_any_rate_is_right(tmp_path):
    out = run_folder(tmp_path / "run", actor=1e-6)
    changed = f"{ACTOR}=2e-6"
    contents = "actor_rollout_ref.actor.checkpoint.load_contents=[model]"
    for more in (["trainer.resume_mode=disable"], ["trainer.val_only=true"], [contents]):
        assert [*check_resumed_rates(resuming(out, changed, *more), critic=False)] == []
    for tracker in ("", "40"):  # a kill while it was written; a folder that is gone
        (out / "latest_checkpointed_iteration.txt").write_text(tracker)
        assert [*check_resumed_rates(resuming(out, changed), critic=False)] == []
    assert [*check_resumed_rates(resuming(tmp_path / "new", changed), critic=False)] == []


@pytest.mark.slow
def test_a_checkpoint_that_is_named_is_the_one_that_is_compared(tmp_path):
    out = run_folder(tmp_path / "run", actor=1e-6)
    save(tmp_path / "global_step_5" / "actor", 7e-6)
    named = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}/global_step_5"]
    (problem,) = check_resumed_rates(resuming(out, *named), critic=False)
    assert "was trained with 7e-06" in problem.what


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_read_is_named_and_not_refused(tmp_path):
    out = run_folder(tmp_path / "run", actor=1e-6)
    (file,) = (out / "global_step_20" / "actor").iterdir()
    file.write_bytes(b"half of a checkpoint")
    (problem,) = check_resumed_rates(resuming(out), critic=False)
    assert (problem.level, problem.where) == ("warning", ACTOR) and str(file) in problem.what


@pytest.mark.parametrize(
    ("mode", "path", "level", "said"),
    [
        ("resume_path", None, "error", "must be given"),
        ("resume_path", "global_step_9", "error", "there is no folder"),
        ("resume_path", "run", "error", "does not end in global_step_N"),
        ("resume_path", "run/global_step_5/actor", "error", "does not end in global_step_N"),
        ("auto", "run/global_step_5", "warning", "has no effect"),
    ],
)
def test_a_path_to_resume_from_that_verl_cannot_use_is_named(mode, path, level, said, tmp_path):
    (tmp_path / "run" / "global_step_5" / "actor").mkdir(parents=True)
    trainer = {"resume_mode": mode, "resume_from_path": path and str(tmp_path / path)}
    config = OmegaConf.create({"trainer": trainer, "actor_rollout_ref": {}})
    (problem,) = check_resume_path(config)
    assert (problem.level, problem.where) == (level, "trainer.resume_from_path") and said in problem.what


def test_a_path_to_resume_from_that_verl_can_use_is_no_problem(tmp_path):
    (tmp_path / "global_step_5").mkdir()
    trainer = {"resume_mode": "resume_path", "resume_from_path": str(tmp_path / "global_step_5")}
    assert [*check_resume_path(OmegaConf.create({"trainer": trainer, "actor_rollout_ref": {}}))] == []
    trainer["resume_mode"] = "auto"
    assert [*check_resume_path(OmegaConf.create({"trainer": trainer}))] == [], "veRL's SFT trainer takes it"


def test_the_rate_of_an_sft_is_compared_too(tmp_path):
    save(tmp_path / "global_step_4", 1e-5)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("4")
    config = {"trainer": {"resume_mode": "auto", "default_local_dir": str(tmp_path)}, "optim": {"lr": 1e-5}}
    assert [*check_resumed_sft_rate(OmegaConf.create(config))] == []
    config["optim"]["lr"] = 2e-5
    (problem,) = check_resumed_sft_rate(OmegaConf.create(config))
    assert (problem.level, problem.where) == ("error", "optim.lr")
    save(tmp_path / "other" / "global_step_9", 2e-5)  # veRL's SFT trainer resumes from it with `auto`, too
    config["trainer"]["resume_from_path"] = str(tmp_path / "other" / "global_step_9")
    assert [*check_resumed_sft_rate(OmegaConf.create(config))] == []


def test_reading_a_checkpoint_runs_nothing_that_stands_in_it(tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"lr_scheduler": {"base_lrs": [1e-6]}, "rng": Hostile()}, tmp_path / "state.pt")
    assert plain_values(str(tmp_path / "state.pt"))["lr_scheduler"] == {"base_lrs": [1e-6]}
    assert not (tmp_path / "ran").exists()
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(ValueError, match="not a file of torch.save"):
        plain_values(str(tmp_path / "bare.pt"))


#: Pickles whose reading would take gigabytes, or for ever: an entry of the memo with a high number; a key of
#: 40 tuples, each of which has the one before twice.
BOMBS = {
    "memo": (b"\x80\x02Nr\xff\xff\xff\x0f.", "it needs more than"),
    "hash": (b"\x80\x02})" + b"2\x86" * 40 + b"Ns.", "s of processor time"),
}


@pytest.mark.slow  # seconds of processor time until a limit ends it
@pytest.mark.parametrize("name", BOMBS)
def test_a_checkpoint_that_would_take_for_ever_is_given_up(name, tmp_path):
    out = run_folder(tmp_path / "run", actor=1e-6)
    (file,) = (out / "global_step_20" / "actor").iterdir()
    pickled, reason = BOMBS[name]
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
    (problem,) = check_resumed_rates(resuming(out), critic=False)
    assert problem.level == "warning" and reason in problem.what


@pytest.mark.full
@pytest.mark.slow
def test_the_rate_is_found_in_what_verls_own_manager_saves(tmp_path):
    script = Path(__file__).parents[2] / "recipes" / "saved_checkpoint.py"
    step = tmp_path / "run" / "global_step_20"
    command = [sys.executable, str(script), str(step / "actor"), "3e-6"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=180, env={**os.environ, "VERL_PLATFORM": "cpu"}
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("20")
    assert [*check_resumed_rates(resuming(tmp_path / "run", f"{ACTOR}=3e-6"), critic=False)] == []
    (problem,) = check_resumed_rates(resuming(tmp_path / "run"), critic=False)
    assert "was trained with 3e-06" in problem.what
