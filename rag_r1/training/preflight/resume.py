"""Checks a resumed training: its learning rates must be those of the checkpoint.

When veRL 0.9.1 resumes it restores optimizers and schedulers (utils/checkpoint/fsdp_checkpoint_manager.py,
`load_checkpoint`). The rates with which a scheduler was created, `base_lrs`, are part of its state, so a rate
that was changed since then has no effect, and nothing says so. Warm-up and decay are factors of that rate,
and are the new configuration's.

A checkpoint is read without torch and without running anything in it, in a process with limits of time and
memory (rag_r1/sandbox/torch_checkpoint.py).
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rag_r1.options.problems import Problem, error, warning
from rag_r1.sandbox.worker_pool import JobError, JobLimits, LimitError, WorkerPool

#: veRL's file with the number of the last whole checkpoint.
_TRACKER = "latest_checkpointed_iteration.txt"
#: A file has a few kilobytes and is read in milliseconds.
_LIMITS = JobLimits(cpu_s=5.0, memory=512 << 20, answer=1 << 20)


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
            rates = _saved_rates(files[0])
        except (OSError, LimitError, JobError) as fault:
            text = f"the learning rate in {files[0]} cannot be read ({fault}), so it was not compared"
            problems.append(warning(key, text, "see that it has not changed: veRL restores the old one"))
            continue
        wanted = float(OmegaConf.select(config, key))
        if all(math.isclose(rate, wanted, rel_tol=1e-6) for rate in rates):
            continue
        text = (
            f"is {wanted:g}, but the training resumes from {checkpoint}, which was trained with {rates[0]:g}:"
            " veRL restores that and ignores a new one"
        )
        remedy = (
            f"set {key}={rates[0]:g} to go on; for another rate start a new training from the exported model,"
            " with another trainer.default_local_dir"
        )
        problems.append(error(key, text, remedy))
    return problems


def _saved_rates(path: Path) -> list[float]:
    """The learning rates in a file of a checkpoint. Raises OSError, LimitError and JobError."""
    workers = WorkerPool(1)
    try:
        named = os.fsencode(path.absolute()).decode("latin-1")
        return workers.call("rag_r1.sandbox.torch_checkpoint:base_rates", [named], _LIMITS)
    finally:
        workers.close()
