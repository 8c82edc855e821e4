"""The phases. Each module has the same names:

- `TITLE`: a phase in words
- `groups(plan)`: its cells; those of one group share a process
- `check(plan)`: raises RunError for a model or a file that it needs and that is missing
- `measure(plan, cells)`: gives the figures of these cells of one group, each as soon as it is measured
- `HEAD`, `rows(cell, figures)`: the columns of its table, and a cell's rows
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
