"""Kills a training with SIGKILL, and compares checkpoints tensor by tensor.

resumed_training.py and the phase `resume` of gpu.py use it, to show whether a resumed training equals an
undisturbed one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from rag_r1.system.child_processes import SESSION, end, start


def run_and_kill(
    command: Sequence[str], log: Path, is_done: Callable[[], bool], variables: Mapping[str, str]
) -> None:
    """Start a command, and kill it with all of its children, as when a machine is lost, once `is_done`.

    `variables` are added to its environment. Raises RuntimeError if the command ends before that.
    """
    environment = {**os.environ, **variables}
    environment.pop("RAY_ADDRESS", None)  # the training must start its own Ray, which is killed with it
    with log.open("w") as file:
        process = start(command, file, environment)
        try:
            while not is_done():
                if process.poll() is not None:
                    raise RuntimeError(f"the training ended before it was killed: see {log}")
                time.sleep(0.05)
            children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(children, timeout=60)
        finally:
            end(process, SESSION)  # waits for the process itself


def tensors(checkpoint: Path, kind: str) -> dict[str, Any]:
    """Load the tensors of a checkpoint of one process, by name.

    `kind` is `model` for the weights, or `optim` for the optimizer's state. Raises ValueError if the
    checkpoint has no such file, or several.
    """
    import torch
    import torch.distributed.tensor  # the class of the tensors that FSDP2 saves

    [file] = checkpoint.rglob(f"{kind}_world_size_1_rank_0.pt")
    by_name: dict[str, Any] = {}

    def collect(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                collect(f"{name}/{key}", item)
        elif isinstance(value, torch.Tensor):
            by_name[name] = value.to_local() if hasattr(value, "to_local") else value

    collect(kind, torch.load(file, map_location="cpu", weights_only=True))
    return by_name


def compare(
    original: Mapping[str, Any], other: Mapping[str, Any], before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Compare two sets of tensors with the same names.

    Returns the number of `tensors`, how many of them are `equal` to the bit, and the `largest` difference.
    With `before`, the common origin of both, the result also has the norm of the difference as a share of the
    norm of the original's change, `of_change`, which is None if there is no change.
    """
    import torch

    equal = sum(torch.equal(value, other[name]) for name, value in original.items())
    gaps = {name: (value.double() - other[name].double()) for name, value in original.items()}
    figures: dict[str, Any] = {"tensors": len(original), "equal": equal}
    figures["largest"] = max(float(gap.abs().max()) for gap in gaps.values())
    if before is not None:
        changes = (value.double() - before[name].double() for name, value in original.items())
        change = sum(float(difference.square().sum()) for difference in changes)
        distance = sum(float(gap.square().sum()) for gap in gaps.values())
        figures["of_change"] = (distance / change) ** 0.5 if change else None
    return figures
