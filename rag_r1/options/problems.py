"""What checks of a configuration share: the problems and notes that they report, and how they read its keys.

Commands of the base installation, which does not include OmegaConf, report problems, too. So the functions
that need OmegaConf import it themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

if TYPE_CHECKING:
    from omegaconf import DictConfig

_P = ParamSpec("_P")
#: The remedy for a wrong option whose fault names none.
_OPTION_REMEDY = "correct the key; `rag-r1 recipes show rag_r1_defaults` explains each"


@dataclass(frozen=True)
class Problem:
    """A problem that a check found."""

    #: A run must not start with an error; it can start with a warning.
    level: Literal["error", "warning"]
    #: The key, file or row that has the problem.
    where: str
    #: What is wrong with it.
    what: str
    #: What the user can do.
    remedy: str

    def __str__(self) -> str:
        return f"{self.level}: {self.where}: {self.what}\n    -> {self.remedy}"


def error(where: str, what: str, remedy: str) -> Problem:
    """Return a Problem with which a run must not start."""
    return Problem("error", where, what, remedy)


def error_of(where: str, message: object) -> Problem:
    """Return a Problem with which a run must not start, from a message whose remedy follows its last colon
    and blank."""
    what, _, remedy = str(message).rpartition(": ")
    return error(where, what, remedy)


def warning(where: str, what: str, remedy: str) -> Problem:
    """Return a Problem with which a run can start."""
    return Problem("warning", where, what, remedy)


def problem_of_fault(fault: Exception) -> Problem:
    """Return the Problem for a fault of an option. The fault's message begins with the key, as in
    `rag_r1.retriever.topk must be ...`, or with `unknown key` and the key."""
    what = str(fault)
    keys = [word.rstrip(":,") for word in what.split() if word.startswith("rag_r1")]
    where = getattr(fault, "key", None) or (keys[0] if keys else "rag_r1")
    remedy = getattr(fault, "remedy", "") or _OPTION_REMEDY
    if what.startswith(f"unknown key {where}: "):
        what, remedy = "there is no such key", what.removeprefix(f"unknown key {where}: ")
    elif what.startswith(where):
        what = what.removeprefix(where).lstrip(": ")
    return error(where, what, remedy)


@dataclass
class PreflightReport:
    """The results of all checks."""

    problems: list[Problem] = field(default_factory=list)
    #: Sentences about what was checked.
    notes: list[str] = field(default_factory=list)
    #: Tables of estimates, which `--check-only` prints.
    tables: list[str] = field(default_factory=list)

    @property
    def errors(self) -> list[Problem]:
        """The problems with which the run must not start."""
        return [problem for problem in self.problems if problem.level == "error"]

    @property
    def sentences(self) -> list[str]:
        """The errors, one sentence for each."""
        return [f"{problem.where}: {problem.what}: {problem.remedy}" for problem in self.errors]


def print_report(report: PreflightReport, *, tables: bool = False) -> bool:
    """Print what was checked and what is wrong, and with `tables` also the estimates. Returns whether there
    is no error, so that the run may start."""
    for note in report.notes:
        print(f"checked: {note}")
    for problem in report.problems:
        print(problem, file=sys.stderr)
    if tables:
        print(*report.tables, sep="\n\n")
    if report.errors:
        print(f"{len(report.errors)} error(s): the run was not started", file=sys.stderr)
        return False
    print("preflight: all is well")
    return True


def is_unset(config: DictConfig, key: str) -> bool:
    """Return whether a key is null, missing (`???`) or absent."""
    from omegaconf import OmegaConf

    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent)
    return not OmegaConf.is_dict(node) or OmegaConf.is_missing(node, name) or node.get(name) is None


def without(config: DictConfig, wrong: Iterable[Problem]) -> DictConfig:
    """Return a copy of a configuration in which the keys of the problems `wrong` are missing (`???`), so that
    a check that reads such a key ends there (`found`)."""
    from omegaconf import OmegaConf, read_write

    known = deepcopy(config)
    with read_write(known):
        for problem in wrong:
            OmegaConf.update(known, problem.where, "???", force_add=True)  # it may have been deleted
    return known


def found(check: Callable[_P, Iterable[Problem]], *args: _P.args, **kwargs: _P.kwargs) -> Iterator[Problem]:
    """Yield the problems that a check finds until it ends, or until it reads a key that is missing. A key
    that is not there, because an override has deleted it, is a problem, too."""
    from omegaconf.errors import ConfigAttributeError, InterpolationToMissingValueError, MissingMandatoryValue

    try:
        with suppress(MissingMandatoryValue, InterpolationToMissingValueError):
            yield from check(*args, **kwargs)
    except ConfigAttributeError as fault:
        remedy = "give it a value, or leave out the override that deletes it"
        yield error(str(fault.full_key), "is not there, but a training reads it", remedy)


def plain(node: Any) -> Any:
    """Return a node of a configuration as plain Python values, with all interpolations resolved. A value that
    is no node is returned unchanged."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def first_line(text: Any) -> str:
    """Return the first line of a text, or `no message` if it is blank, for messages on one line."""
    return next(iter(str(text).strip().splitlines()), "no message")
