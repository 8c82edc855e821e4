"""A cell is one measurement; its result is written to OUT/cells/<phase>/<name>.json as soon as it is done.

The file has the settings of the cell, and either its figures or the last lines of its error. A cell with a
file is not measured again; to repeat it, remove the file. A file with other settings is refused, and one that
was cut off is treated as missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag_r1.rollouts.provenance_facts import commit_facts
from rag_r1.runs.state_file import StateFile
from rag_r1.system.child_processes import last_lines

#: Number of lines of an error that are kept.
_LINES = 12


@dataclass(frozen=True)
class Cell:
    """A measurement of a phase."""

    phase: str
    name: str
    #: A description for the page.
    label: str
    #: All settings on which the figures depend, besides the machine.
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Result:
    """The result of a cell."""

    #: Empty for a cell that failed.
    figures: dict[str, Any] = field(default_factory=dict)
    #: The last lines of the error; None for a cell that was measured.
    error: str | None = None
    #: The commit of this project that measured the cell.
    commit: str | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Result:
        """Read the contents of a cell's file. Raises KeyError or TypeError if they have another form."""
        return cls(dict(content["figures"]), content["error"], content["commit"])


class CellStore:
    """The results of the cells in a folder OUT."""

    def __init__(self, out: Path):
        self._folder = out / "cells"

    def read(self, cell: Cell) -> Result | None:
        """Return the result of a cell, or None if it has none.

        Raises RunError if the file has other settings.
        """
        return self._file(cell).read(Result.of)

    def write(self, cell: Cell, figures: Mapping[str, Any]) -> None:
        """Write the figures of a cell. Raises OSError."""
        self._write(cell, figures, None)

    def fail(self, cell: Cell, log: Path | str) -> None:
        """Write the last lines of a log, or of an error's text, as the error of a cell. Raises OSError."""
        # A killed process may have written nothing, but only a cell that was measured has no error.
        self._write(cell, {}, last_lines(log, _LINES) or "the process ended without a message")

    def _write(self, cell: Cell, figures: Mapping[str, Any], error: str | None) -> None:
        commit = (commit_facts() or {}).get("sha")
        self._file(cell).write({"figures": dict(figures), "error": error, "commit": commit})

    def _file(self, cell: Cell) -> StateFile:
        made_from = {"cell": f"{cell.phase}/{cell.name}", "settings": cell.settings}
        return StateFile(self._folder / cell.phase / f"{cell.name}.json", made_from, refuses_changes=True)
