"""Finds the Hugging Face model that belongs to a folder.

    outputs/sft/model              config.json and weights: the folder itself
    run/checkpoints                veRL's folder of checkpoints: the model of the last complete one
    run/checkpoints/global_step_7  one checkpoint, of reinforcement learning (`actor/` inside) or of SFT
    .../global_step_7/actor        the same

A checkpoint that has an exported model (`huggingface/` with weights; `hf_model` in
checkpoint.save_contents) is that model. Otherwise its FSDP shards are merged (shard_merge.py), with their
adapters if there are any.
"""

from __future__ import annotations

import re
from pathlib import Path

from rag_r1.inference.model_folders.shard_merge import has_only_adapters, has_weights, merged_model
from rag_r1.inference.model_folders.weights import check_weights
from rag_r1.runs.errors import RunError

#: Names the last complete checkpoint in veRL's folder of checkpoints.
TRACKER = "latest_checkpointed_iteration.txt"
#: Beside the shards of a checkpoint with adapters: their rank and alpha.
ADAPTER_META = "lora_train_meta.json"
_STEP = re.compile(r"global_step_(\d+)")


def model_folder(path: Path, into: Path) -> Path:
    """Return the Hugging Face folder of the model in `path`, by the rules at the top of the module.

    FSDP shards are merged into a new folder below `into`. Raises RunError if there is no model, or its
    weights are incomplete, and OSError if the disk is full or a file cannot be read.
    """
    if not path.is_dir():
        raise RunError(
            f"{path} is not a folder: give that of a Hugging Face model or of a checkpoint of veRL, or serve "
            "the model yourself and give --base-url"
        )
    if has_weights(path):
        check_weights(path)
        return path
    checkpoint = _checkpoint(path)
    state = checkpoint / "actor" if (checkpoint / "actor").is_dir() else checkpoint
    has_adapters = (state / ADAPTER_META).exists()
    if has_weights(state / "huggingface") and not has_adapters:  # else its weights have PEFT's names
        check_weights(state / "huggingface")
        return state / "huggingface"
    shards = sorted(state.glob("model_world_size_*_rank_*.pt"))
    if not shards or not (state / "fsdp_config.json").exists():
        raise RunError(
            f"{checkpoint} holds no model: neither config.json with weights, nor a checkpoint of veRL with "
            "huggingface/ or FSDP shards: copy or download it again as a whole, or give another folder. "
            "(Shards of several machines must be in one folder; Megatron's are merged by hand: python -m "
            "verl.model_merger merge --backend megatron)"
        )
    if has_adapters and has_only_adapters(shards[0]):
        raise RunError(
            f"{state} has adapters only: merge them into their model (over nf4 `rag-r1 model export-nf4 "
            "--merged`, else peft's merge_and_unload) and give that folder, or serve both and give --base-url"
        )
    return merged_model(state, shards, into / f"merged_{checkpoint.name}")


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint in veRL's folder of checkpoints, from which veRL would resume;
    None if there is none. Raises OSError if the name of the checkpoint cannot be read."""
    tracker = folder / TRACKER
    step = tracker.read_text(errors="replace").strip() if tracker.is_file() else ""
    path = folder / f"global_step_{step}"
    return path if step.isdigit() and path.is_dir() else None


def checkpoint_name(model: Path) -> str | None:
    """Return `FOLDER/global_step_N` for a model inside a checkpoint, where FOLDER is the name of the folder
    of checkpoints; None for any other model."""
    for folder in model.resolve().parents:
        if _STEP.fullmatch(folder.name):
            return f"{folder.parent.name}/{folder.name}"
    return None


def _checkpoint(path: Path) -> Path:
    """Return the checkpoint folder `global_step_N` for a path.

    The path may be that folder, its `actor`, or veRL's folder of checkpoints, whose newest one is returned.
    Any other path is returned unchanged. Raises RunError if there are checkpoints and the newest is not
    known.
    """
    if _STEP.fullmatch(path.name):
        return path
    if path.name == "actor" and _STEP.fullmatch(path.parent.name):
        return path.parent
    if (newest := newest_checkpoint(path)) is not None:
        return newest
    if any(path.glob("global_step_*")):
        raise RunError(
            f"{path} has checkpoints, but {path / TRACKER} does not name the last complete one: give the "
            "folder of one, global_step_N"
        )
    return path
