"""Lets the checks run on a configuration in which some values are wrong.

`without` marks these values as missing (`???`). If a check then reads one, OmegaConf raises an error, and
`found` ends the check: what it has found so far is kept, and what would follow from a wrong value is not
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from typing import ParamSpec

from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue

from rag_r1.options.problems import Problem

_P = ParamSpec("_P")


def without(config: DictConfig, wrong: Iterable[Problem]) -> DictConfig:
    """Return a copy of the configuration in which the keys of these problems are missing."""
    known = deepcopy(config)
    with read_write(known):
        for problem in wrong:
            OmegaConf.update(known, problem.where, "???")
    return known


def found(check: Callable[_P, Iterable[Problem]], *args: _P.args, **kwargs: _P.kwargs) -> Iterator[Problem]:
    """Yield the problems that a check finds before it reads a value that is missing."""
    with suppress(MissingMandatoryValue, InterpolationToMissingValueError):
        yield from check(*args, **kwargs)
