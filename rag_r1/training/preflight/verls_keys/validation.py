"""Runs veRL's own validation of its keys, before a training starts."""

from __future__ import annotations

import contextlib
import io
import traceback
import warnings
from collections.abc import Iterator

from omegaconf import DictConfig

from rag_r1.options.problems import Problem, error


def check_verl(config: DictConfig, has_model: bool) -> Iterator[Problem]:
    """Run veRL's own validation. Without a model its part for the critic is left out, since that would load
    the model."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns "critic disabled" in every GRPO run
            validate_config(config, need_reference_policy(config), need_critic(config) and has_model)
    except Exception as fault:  # veRL asserts, and Hydra wraps whatever its dataclasses raise
        yield error("veRL's validation", _verls_reason(fault), "correct the key that it names")


def check_verls_blocks(config: DictConfig) -> Iterator[Problem]:
    """Run what veRL itself validates of the engine and the optimizer of a supervised fine-tuning."""
    from verl.utils.config import omega_conf_to_dataclass

    for block in ("engine", "optim"):
        try:
            omega_conf_to_dataclass(config[block])
        except Exception as fault:  # as above
            yield error(block, _verls_reason(fault), "correct the key that it names")


def _verls_reason(fault: Exception) -> str:
    """Return the message of an error of veRL, which Hydra may have wrapped. If it has none, as many
    assertions, it is the line that failed."""
    cause = fault.__cause__ if fault.__cause__ is not None else fault
    frames = traceback.extract_tb(cause.__traceback__)
    return " ".join(str(cause).split()) or (frames[-1].line if frames else None) or repr(cause)
