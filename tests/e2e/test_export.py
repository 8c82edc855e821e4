"""The command of docs/guides/exporting.md: a checkpoint of veRL becomes a Hugging Face model.

What that must be stands in export_checks.py; test_pipeline.py exports what a training has left.
"""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from rag_r1.demo.policy import policy_path
from tests.e2e.export_checks import it_is_the_same_model
from tests.e2e.export_command import export


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
