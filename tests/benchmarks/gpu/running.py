"""The miniature of benchmarks/gpu.py as a user starts it, and what it leaves."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpu.cells import Cell, CellStore
from benchmarks.gpu.phases import PHASES
from benchmarks.gpu.plan import Plan
from benchmarks.gpu.runner import cells_of
from tests.benchmarks.conftest import ENVIRONMENT, ROOT

#: Far more than a phase takes on a busy machine.
_AT_MOST_S = 1500


class Miniature:
    """One phase, measured into `out`."""

    def __init__(self, out: Path, phase: str):
        self.out, self.phase = out, phase
        self.plan = Plan.of(out, miniature=True, random_weights=True)
        self.cells = cells_of(PHASES[phase], self.plan)

    def start(self, *options: str, log: str = "command.log") -> subprocess.Popen:
        command = [sys.executable, "benchmarks/gpu.py", "--miniature", "--out", str(self.out)]
        with (self.out.parent / log).open("w") as output:
            return subprocess.Popen(
                [*command, "--phases", self.phase, "--minutes", "60", *options],
                cwd=ROOT,
                env=ENVIRONMENT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def run(self, *options: str) -> int:
        """To its end; the exit status."""
        return self.start(*options).wait(_AT_MOST_S)

    def kill_when(self, is_time: Callable[[], bool]) -> None:
        """Start it, and end the command alone with SIGKILL as soon as it is time."""
        process = self.start(log="killed.log")
        try:
            deadline = time.monotonic() + _AT_MOST_S
            while not is_time():
                assert process.poll() is None, (self.out.parent / "killed.log").read_text()
                assert time.monotonic() < deadline, "it is not that far"
                time.sleep(0.02)
        finally:
            process.kill()
            process.wait(60)

    def files(self) -> dict[str, tuple[int, bytes]]:
        """The files of the finished cells: when each was written, and what is in it."""
        folder = self.out / "cells" / self.phase
        return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.glob("*.json")}

    def errors(self) -> dict[str, str | None]:
        """Of each cell that was run: its error, None if it was measured."""
        store = CellStore(self.out)
        results = {cell: store.read(cell) for cell in self.cells}
        return {cell.name: result.error for cell, result in results.items() if result}

    def figures(self, cell: Cell) -> dict:
        result = CellStore(self.out).read(cell)
        assert result is not None and result.error is None
        return result.figures

    def log(self, name: str) -> Path:
        """What a process has printed that began with this cell."""
        return self.out / "logs" / self.phase / f"{name}.log"
