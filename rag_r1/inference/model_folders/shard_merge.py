"""Merges the FSDP shards of a checkpoint into a Hugging Face model.

The shards are merged by veRL's `python -m verl.model_merger`, and adapters in them by adapter_merge.py.
The merged model is kept together with a description of its shards, and is used again as long as the shards
are the same. The shards are pickles. PyTorch is set to load nothing but tensors from them: by default the
merger would unpickle anything, and so run any code that an untrusted checkpoint contains.
"""

from __future__ import annotations

import json
import pickle
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rag_r1.inference.model_folders import adapter_merge
from rag_r1.runs.errors import RunError
from rag_r1.system.child_environments import environment_without_secrets
from rag_r1.system.child_processes import bind_to_parent, last_lines

#: PyTorch's variable that forces weights_only=True in every torch.load.
_SAFE_LOAD = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
#: PyTorch's variable that forces the opposite, and would take precedence.
_UNSAFE_LOAD = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
#: PyTorch's error message for a file that contains more than tensors.
_REFUSAL = "Weights only load failed"
#: The file in a merged model's folder that describes its shards. It is hidden, so that the model's hash does
#: not include it.
_MERGED_FROM = ".merged_from.json"


def has_weights(folder: Path) -> bool:
    """Return whether the folder is a Hugging Face model with weights."""
    weights = (path for ending in ("*.safetensors", "pytorch_model*.bin") for path in folder.glob(ending))
    return (folder / "config.json").is_file() and any(weights)


def has_only_adapters(shard: Path) -> bool:
    """Return whether the only weights in a shard are adapters. A shard that cannot be read counts as whole,
    and the merger says what is wrong with it."""
    import torch
    import torch.distributed.tensor  # the class of its weights

    try:
        weights = torch.load(shard, map_location="cpu", mmap=True, weights_only=True)
        return all(".lora_" in name for name in weights)
    except (OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, pickle.PickleError):
        return False


def merged_model(state: Path, shards: list[Path], target: Path) -> Path:
    """Return `target`, the folder of the model merged from the shards in the folder `state`.

    The shards are merged unless `target` was merged from the same shards before. Removes what was
    written if they cannot be merged, and raises RunError, or OSError if the disk is full.
    """
    note = target / _MERGED_FROM
    description = _description(state, shards)
    if note.exists() and note.read_text(encoding="utf-8") == description:
        return target
    if target.exists() and not note.exists():
        raise RunError(f"{target} is not a model that was merged here: move it away")
    part = target.with_name(f"{target.name}.part")
    # Both are removed before the merge, since the disk may have no room for another model. An old model is
    # renamed first: if its removal is interrupted, what is left does not have the name of a whole one.
    shutil.rmtree(part, ignore_errors=True)
    if target.exists():
        target.replace(part)
        shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    print(f"merging the shards of {state} into {target}", file=sys.stderr)
    try:
        _merge(state, part)
        (part / _MERGED_FROM).write_text(description, encoding="utf-8")
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    part.replace(target)
    return target


def _description(state: Path, shards: list[Path]) -> str:
    """Return a JSON description of the checkpoint and its shards. It contains their sizes and times, so that
    it changes if a shard does."""
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in shards]
    return json.dumps({"checkpoint": str(state.resolve()), "shards": files})


def _merge(state: Path, target: Path) -> None:
    """Write the merged model to `target` with veRL's merger. Raises RunError if that fails."""
    merger = ["-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir", str(state)]
    process = _run([*merger, "--target_dir", str(target)])
    if process.returncode and _REFUSAL in process.stdout:
        manual = shlex.join(["python", *merger, "--target_dir", "MODEL"])
        raise RunError(
            f"the shards of {state} cannot be read as tensors: they are damaged, or contain something else, "
            "which could be a program. If the checkpoint is your own, merge it by hand, which runs whatever "
            f"it contains: {manual}; then give the folder MODEL"
        )
    if process.returncode or not has_weights(target):
        output = last_lines(process.stdout)
        raise RunError(f"veRL's model merger failed on {state} (status {process.returncode}):\n{output}")
    if (target / adapter_merge.ADAPTERS).is_dir():
        process = _run(["-m", adapter_merge.__name__, str(target)])
        if process.returncode:
            raise RunError(f"{state}: its adapters cannot be merged:\n{last_lines(process.stdout)}")


def _run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, without secrets in its environment. Returns the finished process, with
    its status and its output."""
    environment = {**environment_without_secrets(()), _SAFE_LOAD: "1"}
    environment.pop(_UNSAFE_LOAD, None)
    command = bind_to_parent([sys.executable, *arguments])
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace"
    )
