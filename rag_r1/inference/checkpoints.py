"""Resolves a model, such as a veRL checkpoint or a name of the Hub, to a Hugging Face model folder.

    outputs/sft/model              config.json and weights: taken as it is
    run/checkpoints                veRL's folder of checkpoints: the last complete one
    run/checkpoints/global_step_7  one checkpoint, of reinforcement learning (`actor/` inside) or of SFT
    .../global_step_7/actor        the same
    Qwen/Qwen2.5-7B-Instruct       no path here: from the Hub, or from its cache

A checkpoint that has an exported model (`huggingface/` with weights; `hf_model` in
checkpoint.save_contents) is that model. Otherwise its FSDP shards are merged by veRL's own
`python -m verl.model_merger`, once: the merged model is kept, and used again for the same shards. The shards
are pickles. PyTorch is told to read nothing but tensors from them (veRL's merger by itself would unpickle
anything, and so run what a stranger's checkpoint contains).
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from rag_r1.runs.errors import RunError
from rag_r1.system.child_processes import bind_to_parent, environment_without_secrets

#: Names the last complete checkpoint in veRL's folder of checkpoints.
TRACKER = "latest_checkpointed_iteration.txt"
#: PyTorch's switches: weights_only in every torch.load, whatever the caller says, or in none.
_ONLY_TENSORS, _ANYTHING = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
#: What PyTorch says about a file with something else in it.
_REFUSED = "Weights only load failed"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
#: Weights in forms that neither transformers nor vLLM needs.
_NOT_NEEDED = ["*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.pth", "original/*", "*.tflite"]
_STEP = re.compile(r"global_step_(\d+)")
#: In a merged model: what it was merged from. Hidden, so that it is no part of the model's hash.
_MERGED_FROM = ".merged_from.json"


def model_folder(path: Path, into: Path) -> Path:
    """The Hugging Face folder of `path` (see the top of the module); a model that must be merged first is
    written below the folder `into`. Raises RunError if there is none."""
    if not path.is_dir():
        raise RunError(
            f"{path} is no folder: give that of a Hugging Face model or of a checkpoint of veRL, or serve "
            "the model yourself and give --base-url"
        )
    if _has_weights(path):
        return path
    step = _checkpoint(path)
    state = step / "actor" if (step / "actor").is_dir() else step
    if (state / "lora_train_meta.json").exists():
        raise RunError(
            f"{state} is a checkpoint of a LoRA: merge the adapter into its base model (peft's "
            "merge_and_unload) and give that folder, or serve both yourself and give --base-url"
        )
    if _has_weights(state / "huggingface"):
        return state / "huggingface"
    shards = sorted(state.glob("model_world_size_*_rank_*.pt"))
    if not shards or not (state / "fsdp_config.json").exists():
        raise RunError(
            f"{path} holds no model: neither config.json with weights, nor a checkpoint of veRL with "
            "huggingface/ or FSDP shards. (Shards of several machines must be in one folder; Megatron's are "
            "merged by hand: python -m verl.model_merger merge --backend megatron)"
        )
    return _merged(state, shards, into / f"merged_{step.name}")


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint in veRL's folder of checkpoints that veRL would resume from, which is the newest
    complete one; None if there is none."""
    tracker = folder / TRACKER
    step = tracker.read_text(errors="replace").strip() if tracker.is_file() else ""
    path = folder / f"global_step_{step}"
    return path if step.isdigit() and path.is_dir() else None


def step_of(model: Path) -> str | None:
    """`global_step_N` of a model within a checkpoint, after the name of the folder that holds it; None for
    any other model."""
    for folder in model.resolve().parents:
        if _STEP.fullmatch(folder.name):
            return f"{folder.parent.name}/{folder.name}"
    return None


def _has_weights(folder: Path) -> bool:
    weights = (path for ending in ("*.safetensors", "pytorch_model*.bin") for path in folder.glob(ending))
    return (folder / "config.json").is_file() and any(weights)


def _checkpoint(path: Path) -> Path:
    """The checkpoint in or around the folder: `global_step_N`, if it is called so."""
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


def _merged(state: Path, shards: list[Path], target: Path) -> Path:
    """The merged model in `target`, made if it is not there or is of other shards."""
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in shards]
    source = json.dumps({"checkpoint": str(state.resolve()), "shards": files})
    note = target / _MERGED_FROM
    if note.exists() and note.read_text(encoding="utf-8") == source:
        return target
    if target.exists() and not note.exists():
        raise RunError(f"{target} is not a model that was merged here: move it away")
    part = target.with_name(f"{target.name}.part")
    for old in (part, target):
        shutil.rmtree(old, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    print(f"merging the shards of {state} into {target}", file=sys.stderr)
    merger = ["-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir", str(state)]
    command = bind_to_parent([sys.executable, *merger, "--target_dir", str(part)])
    environment = {**environment_without_secrets(()), _ONLY_TENSORS: "1"}
    environment.pop(_ANYTHING, None)
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode and _REFUSED in done.stdout:
        shutil.rmtree(part, ignore_errors=True)
        by_hand = shlex.join(["python", *merger, "--target_dir", "MODEL"])
        raise RunError(
            f"the shards of {state} cannot be read as tensors: they are damaged, or contain something else, "
            "which could be a program. If the checkpoint is your own, merge it by hand, which runs whatever "
            f"it contains: {by_hand}; then give the folder MODEL"
        )
    if done.returncode or not _has_weights(part):
        output = "\n".join(done.stdout.strip().splitlines()[-25:])
        raise RunError(f"veRL's model merger failed on {state} (status {done.returncode}):\n{output}")
    (part / _MERGED_FROM).write_text(source, encoding="utf-8")
    part.replace(target)
    return target


def is_hub_name(name: str) -> bool:
    """Is it the name of a repository, and no path on this machine?"""
    return _NAME.fullmatch(name) is not None and not Path(name).exists()


def local_model(name: str) -> Path:
    """The folder of a model that is named by its folder or by the Hub's name, which is downloaded if it is
    not in the cache. Raises RunError if the Hub does not give it; a path that does not exist is returned."""
    if not is_hub_name(name):
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, ignore_patterns=_NOT_NEEDED))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise RunError(
            f"{name} is no folder here, and the Hub does not give it ({reason}): check the name and the "
            f"network, download it where there is one (`hf download {name} --local-dir DIR`), or serve the "
            "model yourself and give --base-url"
        ) from error
