"""Checks the loggers of a training, which veRL would refuse only after everything has been started."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from rag_r1.options.problems import Problem, error, plain
from rag_r1.options.suggestions import did_you_mean

_KEY = "trainer.logger"


def check_loggers(config: DictConfig) -> Iterator[Problem]:
    """Check that `trainer.logger` is the name of one of veRL's loggers, or a list of names."""
    from verl.utils.tracking import Tracking

    value, known = plain(OmegaConf.select(config, _KEY)), Tracking.supported_backend
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list):
        yield error(_KEY, f"is {value!r}, which is not a list of names", "give a list, as [console,file]")
        return
    for name in names:
        if name not in (*known, "tracking"):  # the former name of wandb
            hint = did_you_mean(str(name), known)
            yield error(_KEY, f"veRL has no logger {name!r}", hint or f"use {', '.join(known)}")
