"""The section of docs/results/gpu.md that is made from cells, between two marks; the rest of the page stays.

It says what was measured, on which machine, and names each cell that has not been run and each that failed.
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
    """The tables of these phases, in Markdown, from the cells in the plan's folder."""
    store, page = CellStore(plan.out), Page()
    results = {name: {cell: store.read(cell) for cell in cells_of(PHASES[name], plan)} for name in phases}
    if any(result for of_phase in results.values() for result in of_phase.values()):
        page.text(_machine(plan))
    for name, of_phase in results.items():
        _add_phase(page, PHASES[name], of_phase)
    missing = [_not_run(PHASES[name], of_phase) for name, of_phase in results.items()]
    if any(missing):
        page.text("Not run:").bullets(filter(None, missing))
    return str(page)


def write_section(path: Path, text: str) -> None:
    """Replace the section in a page. Raises RunError for a page without the two marks, and OSError."""
    page = path.read_text(encoding="utf-8")
    marked = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if len(marked.findall(page)) != 1:
        raise RunError(f"{path} has no section for the cells: put {BEGIN} and {END} where it belongs")
    write_text(path, marked.sub(lambda _: f"{BEGIN}\n\n{text}\n\n{END}", page))


def _machine(plan: Plan) -> str:
    """The sentence on machine, versions and commit."""
    provenance = provenance_of(plan.out)
    machine, settings = provenance["machine"], provenance["settings"]
    versions = settings["versions"]
    packages = [f"{name} {versions[name]}" for name in ("torch", "vllm", "verl") if name in versions]
    where = ", ".join(machine["gpus"]) or f"no GPU; {machine['processor']}"
    what = "In miniature, on a CPU: no figure is one of a GPU. " if plan.miniature else ""
    commit = (provenance["commit"] or {}).get("sha", "unknown")[:8]
    begun = f"begun {provenance['started'][:10]} with commit {commit}"
    driver = f"driver {settings['driver']}" if settings["driver"] else "no driver"
    facts = [where, driver, f"{machine['cores']} cores", *packages, begun]
    return what + ", ".join(map(table_cell, facts)) + "."


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
    page.bullets(f"{cell.what}: failed: {table_cell(_last(result))}" for cell, result in failed.items())


def _last(result: Result) -> str:
    return (result.error or "").splitlines()[-1]


def _not_run(phase: ModuleType, results: dict[Cell, Result | None]) -> str | None:
    missing: Sequence[Cell] = [cell for cell, result in results.items() if result is None]
    if not missing:
        return None
    if len(missing) == len(results) > 6:
        return f"{phase.TITLE}: none of {len(missing)} cells, from {missing[0].what} to {missing[-1].what}"
    return f"{phase.TITLE}: {'; '.join(cell.what for cell in missing)}"
