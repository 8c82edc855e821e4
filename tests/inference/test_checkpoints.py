"""What a user calls the model becomes a Hugging Face folder, or an error that says what is missing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from rag_r1.demo.policy import policy_path
from rag_r1.inference.model_folders import checkpoint_name, local_model, model_folder, shard_merge
from rag_r1.inference.model_folders.model_config import model_config
from rag_r1.inference.model_folders.shard_merge import merged_model
from rag_r1.inference.nf4 import export
from rag_r1.runs.errors import RunError
from tests.fakes.weights import NO_TENSORS


def hugging_face(folder: Path, weights: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    if weights:
        (folder / "model.safetensors").write_bytes(NO_TENSORS)
    return folder


def checkpoints(folder: Path, steps=(2, 10), last: int | None = 10, exported: bool = True) -> Path:
    """A training's folder of checkpoints, as veRL leaves it."""
    for step in steps:
        hugging_face(folder / f"global_step_{step}" / "actor" / "huggingface", exported)
    if last is not None:
        (folder / "latest_checkpointed_iteration.txt").write_text(str(last))
    return folder


def test_a_hugging_face_folder_is_taken_as_it_is(tmp_path):
    folder = hugging_face(tmp_path / "model")
    assert model_folder(folder, tmp_path / "into") == folder
    assert checkpoint_name(folder) is None


@pytest.mark.parametrize("inner", ["", "global_step_10", "global_step_10/actor"])
def test_a_checkpoint_with_an_exported_model_is_that_model(tmp_path, inner):
    run = checkpoints(tmp_path / "run")
    folder = model_folder(run / inner, tmp_path / "into")
    assert folder == run / "global_step_10" / "actor" / "huggingface"
    assert checkpoint_name(folder) == "run/global_step_10"


def test_an_earlier_checkpoint_can_be_named(tmp_path):
    run = checkpoints(tmp_path / "run")
    assert "global_step_2" in str(model_folder(run / "global_step_2", tmp_path / "into"))


def test_a_checkpoint_of_supervised_fine_tuning_has_no_actor(tmp_path):
    folder = hugging_face(tmp_path / "sft" / "global_step_7" / "huggingface")
    assert model_folder(folder.parent, tmp_path / "into") == folder


def test_the_last_complete_checkpoint_must_be_known(tmp_path):
    run = checkpoints(tmp_path / "run", last=None)
    with pytest.raises(RunError, match="give the folder of one, global_step_N"):
        model_folder(run, tmp_path / "into")
    (run / "latest_checkpointed_iteration.txt").write_text("")  # a kill has left it empty
    with pytest.raises(RunError, match="does not name the last complete one"):
        model_folder(run, tmp_path / "into")


def test_what_is_no_model_is_refused_with_what_was_expected(tmp_path):
    with pytest.raises(RunError, match="is not a folder.*--base-url"):
        model_folder(tmp_path / "nowhere", tmp_path / "into")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="neither config.json with weights, nor a checkpoint of veRL"):
        model_folder(tmp_path / "empty", tmp_path / "into")
    with pytest.raises(RunError, match="neither config.json with weights"):
        model_folder(checkpoints(tmp_path / "run", exported=False), tmp_path / "into")


def with_adapters(folder: Path) -> tuple[Path, Any]:
    """A checkpoint of adapters over the demo's policy, with an export under PEFT's names, and the policy. All
    weights are numbers of bfloat16, in which veRL's merger writes them."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base, actor = policy_path("rag_r1_mq"), folder / "global_step_1" / "actor"
    shutil.copytree(base, actor / "huggingface")
    torch.manual_seed(1)
    adapters = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"])
    policy = get_peft_model(AutoModelForCausalLM.from_pretrained(base), adapters).eval()
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            value = torch.randn_like(weight) if ".lora_B" in name else weight
            weight.copy_(value.bfloat16().float())
    torch.save(policy.state_dict(), actor / "model_world_size_1_rank_0.pt")
    (actor / "lora_train_meta.json").write_text('{"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"}')
    (actor / "fsdp_config.json").write_text('{"FSDP_version": 1, "world_size": 1}')
    return folder / "global_step_1", policy


@pytest.mark.full
def test_adapters_are_added_to_their_base_in_32_bits(tmp_path):
    pytest.importorskip("verl", reason="left out: verl is not installed")
    import torch
    from transformers import AutoModelForCausalLM

    checkpoint, policy = with_adapters(tmp_path / "run")
    folder = model_folder(checkpoint, tmp_path / "into")
    assert folder == tmp_path / "into" / "merged_global_step_1" and not (folder / "lora_adapter").exists()
    merged = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([[1, 5, 9, 2, 7, 30, 12, 4]])
    with torch.no_grad():
        difference = (merged(ids).logits - policy(ids).logits).abs().max()
        with policy.disable_adapter():
            assert (merged(ids).logits - policy(ids).logits).abs().max() > 100 * difference
    assert difference < 1e-4 and merged.dtype == torch.float32


@pytest.mark.slow
def test_adapters_without_the_model_that_they_belong_to_are_no_model(tmp_path):
    import torch

    checkpoint, policy = with_adapters(tmp_path / "run")
    adapters = {name: weight for name, weight in policy.state_dict().items() if ".lora_" in name}
    torch.save(adapters, checkpoint / "actor" / "model_world_size_1_rank_0.pt")
    with pytest.raises(RunError, match="export-nf4 --merged"):
        model_folder(checkpoint, tmp_path / "into")


def sharded(folder: Path) -> tuple[Path, dict]:
    """A checkpoint with FSDP's shard only, and its weights; as in tests/e2e/test_export.py."""
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    from transformers import AutoModelForCausalLM

    policy, actor = policy_path("rag_r1_mq"), folder / "global_step_1" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    for path in policy.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, actor / "huggingface")
    model = AutoModelForCausalLM.from_pretrained(policy)
    weights = {name: weight + 0.25 for name, weight in model.state_dict().items()}
    model.load_state_dict(weights)
    # As veRL's FSDP2 engine saves it: tensors of a process group of one.
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
        state = fully_shard(model, mesh=mesh).state_dict()
        assert all(isinstance(weight, DTensor) for weight in state.values())
        torch.save(state, actor / "model_world_size_1_rank_0.pt")
    finally:
        torch.distributed.destroy_process_group()
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    return folder / "global_step_1", weights


@pytest.mark.slow
def test_shards_are_merged_once_and_again_if_they_have_changed(tmp_path):
    pytest.importorskip("verl", reason="left out: verl is not installed")
    from tests.e2e.export_checks import it_is_the_same_model

    checkpoint, weights = sharded(tmp_path / "run")
    folder = model_folder(checkpoint, tmp_path / "into")
    assert folder == tmp_path / "into" / "merged_global_step_1"
    it_is_the_same_model(folder, weights, policy_path("rag_r1_mq"))
    made = (folder / "config.json").stat().st_mtime_ns
    assert model_folder(checkpoint, tmp_path / "into") == folder
    assert (folder / "config.json").stat().st_mtime_ns == made
    shard = checkpoint / "actor" / "model_world_size_1_rank_0.pt"
    shard.write_bytes(b"no shard")
    with pytest.raises(RunError, match="cannot be read as tensors: they are damaged, or contain"):
        model_folder(checkpoint, tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []


@pytest.fixture
def shard(tmp_path, monkeypatch) -> Path:
    """A shard, whose merge makes a folder with the files of a model."""
    monkeypatch.setattr(shard_merge, "_merge", lambda state, target: hugging_face(target))
    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "shard.pt").write_bytes(b"1")
    return tmp_path / "actor" / "shard.pt"


def test_an_old_model_whose_removal_is_interrupted_is_not_in_the_way_of_the_next_one(shard, monkeypatch):
    """A folder half removed would count as a model that lacks files, and end every later merge."""
    target = shard.parent / "merged"

    def interrupted(folder: Path, ignore_errors: bool) -> None:
        if folder.exists():
            (folder / ".merged_from.json").unlink()
            raise KeyboardInterrupt

    merged_model(shard.parent, [shard], target)
    shard.write_bytes(b"other")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", interrupted)
        merged_model(shard.parent, [shard], target)
    assert merged_model(shard.parent, [shard], target) == target


def test_a_model_whose_description_cannot_be_written_is_removed(shard, monkeypatch):
    """Without its description a merged model cannot be told from one of another checkpoint."""

    def merge(state: Path, target: Path) -> None:
        (target / ".merged_from.json").mkdir(parents=True)

    monkeypatch.setattr(shard_merge, "_merge", merge)
    with pytest.raises(OSError):
        merged_model(shard.parent, [shard], shard.parent / "merged")
    assert list(shard.parent.iterdir()) == [shard]


def test_a_merger_whose_messages_are_not_utf_8_fails_with_them(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_merge, "bind_to_parent", lambda command: ["printf", r"\377 no"])
    with pytest.raises(RunError, match="(?s)failed on .*no$"):
        shard_merge._merge(tmp_path, tmp_path / "merged")


def test_a_folder_of_an_unknown_user_is_no_model():
    assert local_model("~nobody-has-this-name/model") == Path("~nobody-has-this-name/model")


@pytest.mark.parametrize("error", [httpx.ProxyError("403 Forbidden"), RuntimeError("Data processing error")])
def test_a_download_that_fails_is_named_with_the_remedy(error, monkeypatch):
    def refuse(*args, **options):
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(RunError, match=f"{error}.*check the name and the network"):
        local_model("someone/some-model")
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", refuse)
    monkeypatch.setattr("rag_r1.inference.nf4.export.hub_answers", lambda: True)
    with pytest.raises(RunError, match=f"--base someone/some-model cannot be read .{error}"):
        export._config_of("someone/some-model")


def test_the_keys_of_a_config_without_a_text_config_are_read(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 7, "text_config": null}')
    assert model_config(tmp_path)["vocab_size"] == 7
    (tmp_path / "config.json").write_text('{"vocab_size": null, "text_config": {"vocab_size": 5}}')
    assert model_config(tmp_path)["vocab_size"] == 5
    (tmp_path / "config.json").write_text('{"text_config": 5}')
    assert model_config(tmp_path) == {}


class Program:
    """What a hostile pickle contains: a call."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.slow
@pytest.mark.parametrize("legacy", [False, True])
def test_a_program_in_a_shard_is_not_run_and_the_way_to_merge_ones_own_is_named(tmp_path, legacy):
    pytest.importorskip("verl", reason="left out: verl is not installed")
    import torch

    run = checkpoints(tmp_path / "run", exported=False)
    actor = run / "global_step_10" / "actor"
    for path in policy_path("rag_r1_mq").iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, actor / "huggingface")
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    state = {"weight": torch.zeros(2), "more": Program(tmp_path / "was here")}
    shard = actor / "model_world_size_1_rank_0.pt"
    torch.save(state, shard, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(RunError, match="which could be a program.*verl.model_merger merge --backend fsdp"):
        model_folder(run, tmp_path / "into")
    assert not (tmp_path / "was here").exists()


def test_a_folder_that_was_not_merged_here_is_never_replaced(tmp_path):
    run = checkpoints(tmp_path / "run", exported=False)
    actor = run / "global_step_10" / "actor"
    (actor / "model_world_size_1_rank_0.pt").write_bytes(b"")
    (actor / "fsdp_config.json").write_text("{}")
    own = hugging_face(tmp_path / "into" / "merged_global_step_10")
    with pytest.raises(RunError, match="was merged here: move it away"):
        model_folder(run, tmp_path / "into")
    assert (own / "model.safetensors").exists()


@given(data=st.data())
def test_a_file_of_weights_that_is_cut_off_anywhere_is_refused(data):
    with TemporaryDirectory() as place:
        folder = hugging_face(Path(place) / "model")
        whole = save({"a": np.zeros((2, 3), np.float32), "b": np.zeros(1, np.int64)})
        (folder / "model.safetensors").write_bytes(whole)
        assert model_folder(folder, folder) == folder
        (folder / "model.safetensors").write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
        with pytest.raises(RunError, match="copy or download the model again"):
            model_folder(folder, folder)


def test_the_pointer_of_git_lfs_a_missing_shard_and_a_pipe_are_no_weights(tmp_path):
    folder = hugging_face(tmp_path / "model")
    shards = {"weight_map": {"a": "model.safetensors", "b": "none.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards))
    with pytest.raises(RunError, match="none.safetensors"):
        model_folder(folder, tmp_path)
    (folder / "none.safetensors").write_text("version https://git-lfs.github.com/spec/v1\nsize 1\n")
    with pytest.raises(RunError, match="none.safetensors is not a file of weights"):
        model_folder(folder, tmp_path)
    os.mkfifo(folder / "a.safetensors")
    with pytest.raises(RunError, match="not an ordinary file"):
        model_folder(folder, tmp_path)


@pytest.mark.parametrize(
    "key, size, in_weights", [("num_hidden_layers", 3, 1), ("hidden_size", 8, 4), ("vocab_size", 9, 6)]
)
def test_weights_of_other_sizes_than_config_json_says_are_refused(tmp_path, key, size, in_weights):
    zeros = {"model.embed_tokens.weight": (6, 4), f"model.layers.{'0' * 5000}.up_proj.weight": (4, 4)}
    (tmp_path / "model.safetensors").write_bytes(
        save({name: np.zeros(shape) for name, shape in zeros.items()})
    )
    sizes = {"num_hidden_layers": 1, "hidden_size": 4, "vocab_size": 6}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    assert model_folder(tmp_path, tmp_path) == tmp_path
    further = {"num_hidden_layers": 0, "num_nextn_predict_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(sizes | further))
    assert model_folder(tmp_path, tmp_path) == tmp_path
    (tmp_path / "config.json").write_text(json.dumps(sizes | {key: size}))
    with pytest.raises(RunError, match=f"{key} is {size} there, and {in_weights} in the weights"):
        model_folder(tmp_path, tmp_path)
