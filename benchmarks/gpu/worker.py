"""Measures cells of one phase in a separate process, and writes each as soon as it is done.

    python -m benchmarks.gpu.worker PLAN PHASE CELL...

PLAN is a Plan in JSON. SIGTERM ends the process as Ctrl-C does, so that its children are ended, too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from benchmarks.gpu.cells import CellStore
from benchmarks.gpu.phases import PHASES
from benchmarks.gpu.plan import Plan
from benchmarks.gpu.runner import cells_of
from rag_r1.system.child_processes import exit_on_sigterm


def main(plan: Plan, phase: str, names: Sequence[str]) -> None:
    """Measure the cells with these names, in the order of their phase."""
    store, module = CellStore(plan.out), PHASES[phase]
    cells = [cell for cell in cells_of(module, plan) if cell.name in names]
    started = time.monotonic()
    for cell, figures in zip(cells, module.measure(plan, cells), strict=True):
        store.write(cell, {**figures, "seconds": round(time.monotonic() - started, 1)})
        started = time.monotonic()


if __name__ == "__main__":
    with exit_on_sigterm():
        main(Plan.from_json(sys.argv[1]), sys.argv[2], sys.argv[3:])
