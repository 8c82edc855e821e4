"""The command of docs/guides/exporting.md: a checkpoint of veRL becomes a Hugging Face model.

What that must be stands in export_checks.py.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from export_checks import a_step_changed_the_policy, it_is_the_same_model
from transformers import AutoModelForCausalLM

from rag_r1.demo.policy import policy_path
from rag_r1.demo.run import run_demo

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "exporting.md"


def export(actor: Path, target: Path) -> None:
    """Run the guide's command with these two folders in the place of its own."""
    blocks = GUIDE.read_text(encoding="utf-8").split("```bash\n")[1:]
    block = next(block for block in blocks if "model_merger" in block).partition("```")[0]
    command = shlex.split(block.replace("\\\n", " "))
    command[0] = sys.executable
    command[command.index("--local_dir") + 1] = str(actor)
    command[command.index("--target_dir") + 1] = str(target)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
def test_the_guides_command_exports_a_folder_in_verls_layout(tmp_path):
    policy, actor = policy_path("rag_r1_mq"), tmp_path / "global_step_1" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    for path in policy.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, actor / "huggingface")
    model = AutoModelForCausalLM.from_pretrained(policy)
    weights = {name: weight + 0.25 for name, weight in model.state_dict().items()}
    model.load_state_dict(weights)
    torch.save(model.state_dict(), actor / "model_world_size_1_rank_0.pt")
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    export(actor, tmp_path / "exported")
    it_is_the_same_model(tmp_path / "exported", model.state_dict(), policy)


@pytest.mark.e2e
@pytest.mark.full
def test_a_trainings_checkpoint_is_exported_as_the_trainer_itself_does(tmp_path):
    overrides = [
        "trainer.total_training_steps=1",
        "trainer.save_freq=1",
        "trainer.test_freq=1",
        "data.val_max_samples=12",
        "data.train_batch_size=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
    ]
    run_demo("grpo", tmp_path, seed=1, overrides=overrides, timeout_s=900)
    actor = tmp_path / "checkpoints" / "global_step_1" / "actor"
    saved = actor / "huggingface"
    expected = AutoModelForCausalLM.from_pretrained(saved).state_dict()
    before = AutoModelForCausalLM.from_pretrained(policy_path("rag_r1_mq")).state_dict()
    a_step_changed_the_policy(expected, before)
    export(actor, tmp_path / "exported")
    it_is_the_same_model(tmp_path / "exported", expected, saved)
