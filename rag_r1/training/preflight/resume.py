"""Checks the folder of a training and, if the training resumes, its learning rates.

When veRL 0.9.1 resumes, it restores optimizers and schedulers (utils/checkpoint/fsdp_checkpoint_manager.py,
`load_checkpoint`). The learning rates with which a scheduler was created, `base_lrs`, are part of its state.
So a rate that was changed since then has no effect, and veRL does not say so. Warm-up and decay are factors
of that rate, and do follow the new configuration.

A checkpoint is read without torch and without running code from it, in a process with limits of time and
memory (rag_r1/sandbox/torch_checkpoint.py).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rag_r1.inference.model_folders import newest_checkpoint
from rag_r1.options.out_folder import check_out
from rag_r1.options.problems import Problem, error, error_of, warning
from rag_r1.sandbox.job_paths import path_argument
from rag_r1.sandbox.worker_pool import JobError, JobLimits, LimitError, WorkerPool

#: Generous limits: a file has a few kilobytes, and is read within milliseconds.
_LIMITS = JobLimits(cpu_s=5.0, memory_bytes=512 << 20, answer_bytes=1 << 20)


def check_resumed_rates(config: DictConfig, critic: bool) -> Iterator[Problem]:
    """Check that the learning rates of policy and critic are those of the checkpoint, if the training will
    resume from one."""
    roles = [("actor_rollout_ref.actor", "actor"), *([("critic", "critic")] if critic else [])]
    for role, folder in roles if not config.trainer.get("val_only") else ():
        yield from _check_rate(config, f"{role}.optim.lr", f"{role}.checkpoint", folder)


def check_resumed_sft_rate(config: DictConfig) -> Iterator[Problem]:
    """Check that the learning rate is that of the checkpoint, if a training of `rag-r1 sft` will resume."""
    return _check_rate(config, "optim.lr", "checkpoint", "")


def check_run_folder(config: DictConfig, command: str | None = None) -> Iterator[Problem]:
    """Check that the folder of the checkpoints can be created and written to and, with `command`, that it is
    neither an index nor the folder of a run of another command."""
    folder = config.trainer.get("default_local_dir")
    try:
        if folder is not None:
            check_out(Path(str(folder)).expanduser(), command, "the folder")
    except ValueError as fault:
        yield error_of("trainer.default_local_dir", fault)


def check_resume_path(config: DictConfig) -> Iterator[Problem]:
    """Check that the checkpoint to resume from is given, if the mode asks for one, and is the folder of a
    step, whose number veRL reads in its name: at the end, except in its SFT trainer."""
    key, mode = "trainer.resume_from_path", config.trainer.get("resume_mode")
    path = config.trainer.get("resume_from_path")
    if not path:
        if mode == "resume_path":
            yield error(key, f"must be given with trainer.resume_mode={mode}", f"add {key}=<global_step_N>")
    elif mode not in _modes_of_path(config):
        text = f"has no effect with trainer.resume_mode={mode}"
        yield warning(key, text, "set trainer.resume_mode=resume_path, or leave it out")
    elif not os.path.isdir(path):
        yield error(key, f"there is no folder {path}", "give a checkpoint, DIR/global_step_N")
    elif not re.search(r"global_step_\d+" + ("$" if "actor_rollout_ref" in config else ""), path):
        yield error(key, f"{path} does not end in global_step_N", "give a checkpoint, DIR/global_step_N")


def _modes_of_path(config: DictConfig) -> tuple[str, ...]:
    """Return the modes in which veRL resumes from a path that is given: its SFT trainer also with `auto`."""
    return ("resume_path",) if "actor_rollout_ref" in config else ("resume_path", "auto")


def resumed_from(config: DictConfig) -> Path | None:
    """Return the checkpoint from which veRL will resume; None if it will start from the beginning."""
    trainer = config.trainer
    if trainer.get("resume_mode") in _modes_of_path(config) and trainer.get("resume_from_path"):
        return Path(str(trainer.resume_from_path))
    if trainer.get("resume_mode") != "auto" or trainer.get("default_local_dir") is None:
        return None
    return newest_checkpoint(Path(str(trainer.default_local_dir)).expanduser())


def _check_rate(config: DictConfig, key: str, checkpoint_key: str, role_folder: str) -> Iterator[Problem]:
    """Check that the rate under a key is that of the role's checkpoint, if its scheduler will be restored.

    `role_folder` is the folder of the role's files in a checkpoint; it is empty for `rag-r1 sft`.
    """
    checkpoint = resumed_from(config)
    contents = OmegaConf.select(config, f"{checkpoint_key}.load_contents") or ["extra"]
    if checkpoint is None or "extra" not in contents:
        return  # the scheduler is not restored
    states = sorted((checkpoint / role_folder).glob("extra_state_world_size_*_rank_*.pt"))
    if not states:
        return  # as in Megatron's checkpoints, and in those without `extra`
    try:
        rates = _read_rates(states[0])
    except (OSError, LimitError, JobError) as fault:
        text = f"the learning rate in {states[0]} cannot be read ({fault}), so it was not compared"
        yield warning(key, text, "see that it has not changed: veRL restores the old one")
        return
    configured = float(OmegaConf.select(config, key, throw_on_missing=True))
    if not all(math.isclose(rate, configured, rel_tol=1e-6) for rate in rates):
        text = (
            f"is {configured:g}, but the training resumes from {checkpoint}, which was trained with"
            f" {rates[0]:g}: veRL restores that and ignores a new one"
        )
        remedy = (
            f"set {key}={rates[0]:g} to go on; for another rate start a new training from the exported"
            " model, with another trainer.default_local_dir"
        )
        yield error(key, text, remedy)


def _read_rates(path: Path) -> list[float]:
    """Read the learning rates in a file of a checkpoint. Raises OSError if the file cannot be read, and
    LimitError or JobError if parsing it takes too much time or memory, or fails."""
    workers = WorkerPool(1)
    try:
        return workers.call("rag_r1.sandbox.torch_checkpoint:base_rates", [path_argument(path)], _LIMITS)
    finally:
        workers.close()
