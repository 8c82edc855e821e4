"""Kills a training with SIGKILL, and compares its checkpoints with those of another, tensor by tensor."""

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
    """Start a command with further environment variables, and kill it with all of its children, as when a
    machine is lost, once `is_done` says so.

    Raises RuntimeError if the command ends before that.
    """
    environment = {**os.environ, **variables}
    environment.pop("RAY_ADDRESS", None)
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
    """Load the tensors of a checkpoint of one process, by name: `model` for the weights, `optim` for the
    optimizer's state."""
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


def compared(
    one: Mapping[str, Any], two: Mapping[str, Any], before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return how many tensors are equal to the bit, and the largest difference.

    With `before`, the common origin of both, the result also has the norm of the difference as a share of the
    norm of the change.
    """
    import torch

    equal = sum(torch.equal(value, two[name]) for name, value in one.items())
    gaps = {name: (value.double() - two[name].double()) for name, value in one.items()}
    figures: dict[str, Any] = {"tensors": len(one), "equal": equal}
    figures["largest"] = max(float(gap.abs().max()) for gap in gaps.values())
    if before is not None:
        change = sum(
            float((value.double() - before[name].double()).square().sum()) for name, value in one.items()
        )
        distance = sum(float(gap.square().sum()) for gap in gaps.values())
        figures["of_change"] = (distance / change) ** 0.5 if change else None
    return figures
