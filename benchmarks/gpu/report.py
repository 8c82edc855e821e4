"""Writes the section of docs/results/gpu.md that has the results of the cells.

The section is between two marks; the rest of the page is not changed. It has the machine, a table for each
phase, and the names of the cells that failed or were not run; of a long phase without any cell, the first and
the last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from benchmarks.gpu.cells import Cell, CellStore, Result
from benchmarks.gpu.machine import provenance_of
from benchmarks.gpu.phases import PHASES
from benchmarks.gpu.plan import Plan
from benchmarks.gpu.runner import cells_of
from rag_r1.io.atomic_files import write_text
from rag_r1.runs.errors import RunError
from rag_r1.runs.markdown import Page
from rag_r1.runs.markdown import cell as table_cell

BEGIN, END = "<!-- made by benchmarks/gpu.py: begin -->", "<!-- made by benchmarks/gpu.py: end -->"


def section(plan: Plan, phases: Iterable[str] = PHASES) -> str:
    """Return the section for these phases in Markdown, from the cells in the plan's folder."""
    store, page = CellStore(plan.out), Page()
    results = {name: {cell: store.read(cell) for cell in cells_of(PHASES[name], plan)} for name in phases}
    if any(result for phase_results in results.values() for result in phase_results.values()):
        page.text(_machine(plan))
    for name, phase_results in results.items():
        _add_phase(page, PHASES[name], phase_results)
    missing = [_not_run(PHASES[name], phase_results) for name, phase_results in results.items()]
    if any(missing):
        page.text("Not run:").bullets(filter(None, missing))
    return str(page)


def write_section(path: Path, text: str) -> None:
    """Replace the section in a page.

    Raises RunError unless the page has the two marks once, and OSError if it cannot be read or written.
    """
    page = path.read_text(encoding="utf-8")
    marked = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not page.count(BEGIN) == page.count(END) == len(marked.findall(page)) == 1:
        raise RunError(f"{path} needs one section for the cells: put {BEGIN} and {END} there, once")
    write_text(path, marked.sub(lambda _: f"{BEGIN}\n\n{text}\n\n{END}", page))


def _machine(plan: Plan) -> str:
    """Return the sentence about machine, versions and commit."""
    provenance = provenance_of(plan.out)
    machine, settings = provenance["machine"], provenance["settings"]
    versions = settings["versions"]
    packages = [f"{name} {versions[name]}" for name in ("torch", "vllm", "verl") if name in versions]
    processor = ", ".join(machine["gpus"]) or f"no GPU; {machine['processor']}"
    warning = "In miniature, on a CPU: no figure is one of a GPU. " if plan.miniature else ""
    commit = (provenance["commit"] or {}).get("sha", "unknown")[:8]
    begun = f"begun {provenance['started'][:10]} with commit {commit}"
    driver = f"driver {settings['driver']}" if settings["driver"] else "no driver"
    facts = [processor, driver, f"{machine['cores']} cores", *packages, begun]
    return warning + ", ".join(map(table_cell, facts)) + "."


def _add_phase(page: Page, phase: ModuleType, results: dict[Cell, Result | None]) -> None:
    """Add the tables of a phase, and the errors of its failed cells, to the page."""
    measured = {cell: result for cell, result in results.items() if result and not result.error}
    failed = {cell: result for cell, result in results.items() if result and result.error}
    if not measured and not failed:
        return
    page.text(f"### {phase.TITLE}")
    if measured:
        rows = [row for cell, result in measured.items() for row in phase.rows(cell, result.figures)]
        page.table(phase.HEAD, rows, "l" * len(phase.HEAD))
    page.bullets(f"{cell.label}: failed: {table_cell(_last_line(result))}" for cell, result in failed.items())


def _last_line(result: Result) -> str:
    """Return the last line of a result's error."""
    return (result.error or "").splitlines()[-1]


def _not_run(phase: ModuleType, results: dict[Cell, Result | None]) -> str | None:
    """Return the line with the cells of a phase that were not run, or None if all were."""
    missing: Sequence[Cell] = [cell for cell, result in results.items() if result is None]
    if not missing:
        return None
    if len(missing) == len(results) > 6:
        return f"{phase.TITLE}: none of {len(missing)} cells, from {missing[0].label} to {missing[-1].label}"
    return f"{phase.TITLE}: {'; '.join(cell.label for cell in missing)}"
