"""Runs the cells of a phase, in processes of their own, until they are done or the phase's minutes are over.

Cells of one group share a process, in their order: an engine or a server that takes long to start serves all
of them. The process writes each cell as soon as it is done. If it fails, the first cell without a file is
recorded with the end of its log, and a new process goes on with the rest. If the minutes are over, it is
ended with all that it has started; its open cell is measured again, or gone on with, by the next start.
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
#: Seconds of a phase that are left for ending its processes, at most half of it.
_END_S = 45.0


class OutOfTime(Exception):
    """The minutes of a phase are over."""


def cells_of(phase: ModuleType, plan: Plan) -> list[Cell]:
    """Returns all cells of a phase, of all its groups."""
    return [cell for group in phase.groups(plan) for cell in group]


def run_phase(phase: ModuleType, plan: Plan, minutes: float) -> None:
    """Measure what is open of a phase. Raises RunError for cells with other settings."""
    name, store = phase.__name__.rpartition(".")[2], CellStore(plan.out)
    seconds = 60 * minutes
    deadline = time.monotonic() + max(seconds - _END_S, seconds / 2)
    try:
        for group in phase.groups(plan):
            for cells in _open(store, group):
                print(f"{name}: {', '.join(cell.name for cell in cells)}", flush=True)
                _measure(name, plan, store, cells, deadline)
    except OutOfTime:
        print(f"{name}: its {minutes:g} minutes are over; the same command goes on", flush=True)


def _open(store: CellStore, group: Sequence[Cell]) -> Iterator[list[Cell]]:
    """The cells of a group without a file, as long as there are any."""
    while cells := [cell for cell in group if store.read(cell) is None]:
        yield cells


def _measure(phase: str, plan: Plan, store: CellStore, cells: Sequence[Cell], deadline: float) -> None:
    """Run one process; afterwards at least one of the cells has a file."""

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
        stop_leftovers(plan.out)  # Ray's processes end seconds after a training, beside the next cell's
    if left := [cell for cell in cells if store.read(cell) is None]:
        store.fail(left[0], log)
