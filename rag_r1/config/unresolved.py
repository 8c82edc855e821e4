"""Finds values of a composed configuration that a training cannot read.

Such a value is an interpolation that refers to a key that is not there, or one that was deleted (`~KEY`), to
an environment variable that is not set, or to itself; or a plain value in the place of a section. Hydra
composes such a configuration, but the trainer and all checks would end at it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from rag_r1.options.problems import Problem, error, first_line

if TYPE_CHECKING:
    from omegaconf import DictConfig


class UnresolvedError(Exception):
    """The value of `key` cannot be read; `reason` says why, and follows the key in the message."""

    def __init__(self, key: str, reason: str):
        super().__init__(f"{key} {reason}: correct it, or build on a shipped recipe, e.g. rag_r1/grpo")
        self.key = key
        self.reason = reason

    def problem_of(self, override: str) -> Problem:
        """Return the Problem of the override that causes this error."""
        key = override.lstrip("+~").partition("=")[0]
        what = self.reason if key == self.key else f"with this override {self.key} {self.reason}"
        return error(key, what, f"give it a value, or leave {override} out")


def check_resolved(config: DictConfig, blocks: Collection[str]) -> None:
    """Raise UnresolvedError for the first value that cannot be read, or that is in the place of one of the
    `blocks`. An interpolation of a key that is still missing (`???`) can be read once the user gives that
    key; only in the block `rag_r1`, which is read without it, it cannot."""
    from omegaconf import OmegaConf

    for key, reason in _unresolved(config):
        raise UnresolvedError(key, reason)
    for key in blocks:
        if (value := OmegaConf.select(config, key)) is not None and not OmegaConf.is_dict(value):
            raise UnresolvedError(key, f"is a block of keys, not {value}")


def _unresolved(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for each value below a node that cannot be read."""
    from omegaconf import OmegaConf
    from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

    for name in range(len(node)) if OmegaConf.is_list(node) else list(node):
        key = f"{path}.{name}" if path else str(name)
        if OmegaConf.is_missing(node, name):
            continue
        try:
            value = node[name]
        except OmegaConfBaseException as fault:
            is_missing = isinstance(fault, InterpolationToMissingValueError)
            if not is_missing or key.startswith("rag_r1."):
                text = OmegaConf.to_container(node, resolve=False)[name]
                yield key, f"is {text}, which has no value ({first_line(fault)})"
            continue
        if OmegaConf.is_config(value) and not OmegaConf.is_interpolation(node, name):
            yield from _unresolved(value, key)
