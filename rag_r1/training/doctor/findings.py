"""A finding of `rag-r1 doctor`: what was checked, its state, and the remedy if the state is not ok."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

#: The states of a finding, as they are printed. A training cannot start if anything is MISSING.
State = Literal["ok", "warning", "MISSING"]
OK, WARNING, MISSING = get_args(State)


@dataclass(frozen=True)
class Finding:
    """A line of the report, followed by one with the remedy if there is one."""

    #: What was checked, e.g. the name of a package.
    name: str
    state: State
    #: What was found.
    detail: str
    #: What to do; empty if the state is OK.
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.state:8}{self.name:15} {self.detail}"
        return f"{line}\n{'':8}{'':16}-> {self.remedy}" if self.remedy else line


def ok(name: str, detail: str) -> Finding:
    """Return a finding whose state is OK."""
    return Finding(name, OK, detail)
