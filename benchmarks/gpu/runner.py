"""Runs the cells of a phase in worker processes, until they are done or the phase's minutes are over.

The cells of a group share a process, in their order, so that an engine or a server that takes long to start
serves all of them. The process writes each cell as soon as it is done. If it fails, the first cell without a
file gets the end of the log as its error, and a new process continues with the rest. When the minutes are
over, the process is ended with all its children; the next run of the command repeats, or resumes, the cell
that was being measured.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from benchmarks.gpu.cells import Cell, CellStore
from benchmarks.gpu.plan import Plan
from rag_r1.runs.errors import RunError
from rag_r1.runs.processes import run_and_wait, stop_leftovers
from rag_r1.system.child_processes import bind_to_parent

ROOT = Path(__file__).resolve().parents[2]
#: Seconds of a phase, at most half of it, that are reserved for ending its processes.
_END_S = 45.0


class OutOfTime(Exception):
    """The minutes of a phase are over."""


def cells_of(phase: ModuleType, plan: Plan) -> list[Cell]:
    """Return all cells of a phase."""
    return [cell for group in phase.groups(plan) for cell in group]


def run_phase(phase: ModuleType, plan: Plan, minutes: float) -> None:
    """Measure the cells of a phase that have no file. Raises RunError if a file has other settings."""
    name, store = phase.__name__.rpartition(".")[2], CellStore(plan.out)
    seconds = 60 * minutes
    deadline = time.monotonic() + max(seconds - _END_S, seconds / 2)
    try:
        for group in phase.groups(plan):
            for cells in _open_cells(store, group):
                print(f"{name}: {', '.join(cell.name for cell in cells)}", flush=True)
                _measure(name, plan, store, cells, deadline)
    except OutOfTime:
        print(f"{name}: its {minutes:g} minutes are over; the same command goes on", flush=True)


def _open_cells(store: CellStore, group: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Yield the cells of a group without a file, again and again until there are none."""
    while cells := [cell for cell in group if store.read(cell) is None]:
        yield cells


def _measure(phase: str, plan: Plan, store: CellStore, cells: Sequence[Cell], deadline: float) -> None:
    """Run one process, after which at least one of the cells has a file.

    Raises OutOfTime at the deadline.
    """

    def check_time() -> None:
        if time.monotonic() > deadline:
            raise OutOfTime

    check_time()
    log = plan.out / "logs" / phase / f"{cells[0].name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu.worker", plan.to_json(), phase, *(c.name for c in cells)]
    # On two cores the threads of several processes would wait for each other.
    threads = {"OMP_NUM_THREADS": "1"} if plan.miniature else {}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    try:
        run_and_wait(
            bind_to_parent(command),
            log=log,
            watch=check_time,
            environment={"PYTHONPATH": path, **threads},
            name=f"{phase}/{cells[0].name}",
        )
    except RunError:
        print(f"{phase}: failed; see {log}", flush=True)
    finally:
        # Ray's processes outlive a training by seconds, and would disturb the next cell.
        stop_leftovers(plan.out)
    if missing := [cell for cell in cells if store.read(cell) is None]:
        store.fail(missing[0], log)
