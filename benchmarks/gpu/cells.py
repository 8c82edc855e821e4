"""A cell is one measurement, and a file that is written as soon as it is done: OUT/cells/<phase>/<name>.json.

A file has the cell's settings, of which others are refused, and either its figures or the last lines of the
error with which it failed. What has a file is not measured again; who removes the file has it measured again.
A file that was cut off is as none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag_r1.rollouts.provenance_facts import commit_facts
from rag_r1.runs.state_file import StateFile
from rag_r1.system.child_processes import last_lines

#: Lines of an error that are kept.
_LINES = 12


@dataclass(frozen=True)
class Cell:
    """`settings`: all that decides what is measured, beside the machine; `what`: it in words, for a page."""

    phase: str
    name: str
    what: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Result:
    """Of a cell that was measured: `figures`; of one that failed: `error`, its last lines."""

    figures: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    commit: str | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Result:
        """From a cell's file. Raises KeyError or TypeError if it is none."""
        return cls(dict(content["figures"]), content["error"], content["commit"])


class CellStore:
    """The cells in a folder OUT."""

    def __init__(self, out: Path):
        self._folder = out / "cells"

    def read(self, cell: Cell) -> Result | None:
        """None if the cell was not run to its end. Raises RunError for one with other settings."""
        return self._file(cell).read(Result.of)

    def write(self, cell: Cell, figures: Mapping[str, Any]) -> None:
        """Keep the figures of a cell. Raises OSError."""
        self._write(cell, figures, None)

    def fail(self, cell: Cell, log: Path | str) -> None:
        """Keep the end of a log, or of an error's text, as a cell's error. Raises OSError."""
        self._write(cell, {}, last_lines(log, _LINES))

    def _write(self, cell: Cell, figures: Mapping[str, Any], error: str | None) -> None:
        commit = (commit_facts() or {}).get("sha")
        self._file(cell).write({"figures": dict(figures), "error": error, "commit": commit})

    def _file(self, cell: Cell) -> StateFile:
        made_from = {"cell": f"{cell.phase}/{cell.name}", "settings": cell.settings}
        return StateFile(self._folder / cell.phase / f"{cell.name}.json", made_from, refuses=True)
