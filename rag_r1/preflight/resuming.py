"""Preflight of a training that will resume: its learning rates are those of the checkpoint.

When veRL 0.9.1 resumes it restores optimizers and schedulers (utils/checkpoint/fsdp_checkpoint_manager.py,
`load_checkpoint`). The rates with which a scheduler was created, `base_lrs`, are part of its state, so a rate
that was changed since then has no effect, and nothing says so. Warm-up and decay are factors of that rate,
and are the new configuration's.

A checkpoint is read without torch and without running anything in it: a file of `torch.save` is a zip archive
with a pickle, in which everything that is not a plain value is replaced by a placeholder; no tensor is read.
"""

from __future__ import annotations

import math
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rag_r1.preflight.problems import Problem, error, warning

#: veRL's file with the number of the last whole checkpoint.
_TRACKER = "latest_checkpointed_iteration.txt"


def check_resumed_rates(config: DictConfig, critic: bool) -> list[Problem]:
    """If the training will resume: the learning rates of policy and critic are the checkpoint's."""
    if config.trainer.get("val_only"):
        return []
    roles = [("actor_rollout_ref.actor", "actor"), *([("critic", "critic")] if critic else [])]
    return _check(config, [(f"{role}.optim.lr", f"{role}.checkpoint", folder) for role, folder in roles])


def check_resumed_sft_rate(config: DictConfig) -> list[Problem]:
    """The same for `rag-r1 sft`, whose checkpoints have no folders for roles."""
    return _check(config, [("optim.lr", "checkpoint", "")])


def resumed_from(config: DictConfig) -> Path | None:
    """The checkpoint from which veRL will resume; None if it starts from the beginning."""
    trainer = config.trainer
    if trainer.get("resume_mode") == "resume_path" and trainer.get("resume_from_path"):
        return Path(str(trainer.resume_from_path))
    if trainer.get("resume_mode") != "auto" or trainer.get("default_local_dir") is None:
        return None
    folder = Path(str(trainer.default_local_dir))
    try:
        step = int((folder / _TRACKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    checkpoint = folder / f"global_step_{step}"
    return checkpoint if checkpoint.exists() else None


def _check(config: DictConfig, places: list[tuple[str, str, str]]) -> list[Problem]:
    checkpoint, problems = resumed_from(config), []
    for key, options, folder in places if checkpoint else ():
        if "extra" not in (OmegaConf.select(config, f"{options}.load_contents") or ["extra"]):
            continue  # the scheduler is not restored
        files = sorted((checkpoint / folder).glob("extra_state_world_size_*_rank_*.pt"))
        if not files:
            continue  # Megatron's checkpoints, and those without `extra`
        try:
            scheduler = plain_values(files[0]).get("lr_scheduler") or {}
            rates = [float(rate) for rate in scheduler.get("base_lrs", ())]
        except (OSError, ValueError, TypeError, AttributeError) as fault:
            what = f"the learning rate in {files[0]} cannot be read ({fault}), so it was not compared"
            problems.append(warning(key, what, "see that it has not changed: veRL restores the old one"))
            continue
        wanted = float(OmegaConf.select(config, key))
        if all(math.isclose(rate, wanted, rel_tol=1e-6) for rate in rates):
            continue
        what = (
            f"is {wanted:g}, but the training resumes from {checkpoint}, which was trained with {rates[0]:g}:"
            " veRL restores that and ignores a new one"
        )
        remedy = (
            f"set {key}={rates[0]:g} to go on; for another rate start a new training from the exported model,"
            " with another trainer.default_local_dir"
        )
        problems.append(error(key, what, remedy))
    return problems


class _Placeholder:
    """Stands for any object that is not a plain value: it can be called, filled and ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        """For a pickled list of a class of its own."""

    def extend(self, values: Any) -> None:
        """As `append`."""


class _PlainValues(pickle.Unpickler):
    """Loads numbers, texts, lists and dictionaries; calls nothing that a file names."""

    def find_class(self, module: str, name: str) -> type:
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else _Placeholder

    def persistent_load(self, pid: Any) -> _Placeholder:
        return _Placeholder()


def plain_values(path: Path) -> Any:
    """The plain values of a file of `torch.save`. Raises OSError, or ValueError for any other file."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            with archive.open(name) as file:
                return _PlainValues(file).load()
    except OSError:
        raise
    except Exception as fault:  # a broken pickle may raise anything
        raise ValueError(f"no file of torch.save: {type(fault).__name__}") from fault
