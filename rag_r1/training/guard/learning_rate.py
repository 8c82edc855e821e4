"""Changes the learning rate in a checkpoint's optimizer and scheduler.

    python -m rag_r1.training.guard.learning_rate RUN/global_step_8/actor 1e-6

The supervisor runs this in a separate process, since it needs torch. Both files of each rank are changed:
veRL restores `lr` and `initial_lr` of the optimizer's groups, and `base_lrs` and `_last_lr` of the scheduler
(verl 0.9.1, fsdp_checkpoint_manager.py, `load_checkpoint`). All rates are multiplied by the same factor, so
that groups with different rates keep their ratio and a schedule keeps its shape. Each file is replaced as a
whole and never changed in place, because a kept checkpoint may share it as a hard link. The files are read
without running code from them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_r1.io.atomic_files import atomic_file
from rag_r1.io.errors import first_line_of
from rag_r1.options.command_exit import command_main
from rag_r1.runs.errors import RunError


def set_learning_rate(actor: Path, rate: float) -> None:
    """Make `rate` the base learning rate of the checkpoint in the folder `actor`.

    Raises RunError if the folder has no optimizer or no scheduler with a rate above 0, or if a file of it
    cannot be read, and OSError if one cannot be written.
    """
    states = sorted(actor.glob("extra_state_world_size_*_rank_*.pt"))
    if not states:
        raise RunError(
            f"{actor} has no extra_state_*.pt: save it with checkpoint.save_contents=[model,optimizer,extra]"
        )
    for path in states:
        optimizer_path = path.with_name(path.name.replace("extra_state", "optim"))
        extra, optimizer = _load(path), _load(optimizer_path)
        scheduler = extra.get("lr_scheduler") or {}
        base = max(scheduler.get("base_lrs", ()), default=0.0)
        if base <= 0:
            text = f"{path}: the scheduler's learning rate is {base}, which cannot be scaled to {rate:g}"
            raise RunError(f"{text}: start a new training from the exported model")
        factor = rate / base
        for name in ("base_lrs", "_last_lr"):
            scheduler[name] = [factor * value for value in scheduler[name]]
        for group in optimizer["param_groups"]:
            group.update({name: factor * group[name] for name in ("lr", "initial_lr") if name in group})
        _save(extra, path)
        _save(optimizer, optimizer_path)


def _load(path: Path) -> dict[str, Any]:
    """Read the state in a file of a checkpoint without running code from it. Raises RunError if that is
    impossible."""
    import numpy as np
    import torch
    import torch.distributed.tensor  # states of the optimizer are DTensors

    # The state of numpy's random generator is an array; the function that rebuilds it moved between versions.
    reconstruct = np.ndarray((0,)).__reduce__()[0]
    names = [f"numpy.{core}.multiarray._reconstruct" for core in ("_core", "core")]
    allowed = [np.ndarray, np.dtype, np.dtypes.UInt32DType, *((reconstruct, name) for name in names)]
    try:
        with torch.serialization.safe_globals(allowed):
            return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises errors of many types for a damaged file, some without a text
        raise RunError(f"{path} cannot be read: {first_line_of(error)}") from error


def _save(state: dict[str, Any], path: Path) -> None:
    import torch

    with atomic_file(path) as file:
        torch.save(state, file)


@command_main(RunError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Change the learning rate of a checkpoint. The arguments are its actor folder and the new rate. Returns
    0."""
    folder, rate = sys.argv[1:] if arguments is None else arguments
    set_learning_rate(Path(folder), float(rate))
    return 0


if __name__ == "__main__":
    sys.exit(main())
