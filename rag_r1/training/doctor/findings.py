"""A finding of the doctor: one checked thing, its state and the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

OK, WARNING, MISSING = "ok", "warning", "MISSING"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `remedy` says what to do; it is empty if `state` is ok."""

    name: str
    state: str
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.state:8}{self.name:16}{self.detail}"
        return f"{line}\n{'':8}{'':16}-> {self.remedy}" if self.remedy else line


def ok(name: str, detail: str) -> Finding:
    """The finding that all is well with a thing."""
    return Finding(name, OK, detail)


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
