"""The phases of benchmarks/gpu.py, one in each module. All modules have the same names:

- `TITLE`: heading of the phase on the page
- `groups(plan)`: returns the cells of the phase, in groups that share a process
- `check(plan)`: raises RunError if the phase needs a model or a file that is missing
- `measure(plan, cells)`: yields the figures of these cells of one group, each as soon as it is measured
- `HEAD`, `rows(cell, figures)`: the columns of the phase's table, and the rows of a cell
"""

from __future__ import annotations

from types import ModuleType

from benchmarks.gpu.phases import memory, nf4, real_small, resume, retrieval, smoke, step

PHASES: dict[str, ModuleType] = {
    "smoke": smoke,
    "real_small": real_small,
    "memory": memory,
    "step": step,
    "nf4": nf4,
    "resume": resume,
    "retrieval": retrieval,
}
