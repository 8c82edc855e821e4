"""Draws mutants and the tests that decide about them, from the file that `scripts/mutants.py cover` wrote.

All places have the same probability, so a file has mutants in proportion to its places. A mutant is stored
with the data by which finding.py finds it in another state of the tree, and with the fastest tests that
execute its place.
"""

from __future__ import annotations

import ast
import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutation.sites import Site, sites


def sources_of(tree: Path, packages: Sequence[str]) -> dict[str, str]:
    """Return the text of each module of the packages by its path in the tree, in the order of the paths."""
    files = sorted(file for package in packages for file in (tree / package).rglob("*.py"))
    return {file.relative_to(tree).as_posix(): file.read_text(encoding="utf-8") for file in files}


def digest_of(sources: Mapping[str, str]) -> str:
    """Return a digest of modules, which are given as path -> text."""
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()


def draw(
    tree: Path, packages: Sequence[str], coverage: Path, *, seed: int, count: int, tests: int
) -> dict[str, Any]:
    """Draw a sample of `count` mutants, each with at most `tests` tests that decide about it.

    Returns the contents of the file of mutants, as JSON. Raises ValueError if the coverage was measured in
    another state of the sources.
    """
    covered = CoveredLines(json.loads(coverage.read_text(encoding="utf-8")), sources_of(tree, packages))
    if covered.coverage["digest"] != digest_of(covered.sources):
        raise ValueError(f"{coverage} is of another state of the sources: run `cover` again")
    places = [(path, site) for path, source in covered.sources.items() for site in sites(source)]
    drawn: list[dict[str, Any]] = []
    for path, site in random.Random(seed).sample(places, len(places)):
        if len(drawn) == count:
            break
        try:
            ast.parse(site.mutated(covered.sources[path]))
        except (SyntaxError, ValueError):  # ast cannot write it, e.g. because of nested quotation marks
            continue
        before, after = site.statements(covered.sources[path])
        fastest, seconds = covered.fastest_tests(path, site, tests)
        mutant = {
            "path": path,
            "name": site.name,
            "line": site.lines.start,
            "kind": site.kind,
            "ordinal": site.ordinal,
            "siblings": site.siblings,
            "shape": site.shape,
            "before": before,
            "after": after,
        }
        mutant_id = hashlib.sha256(json.dumps(mutant).encode()).hexdigest()[:10]
        drawn.append({"id": mutant_id, **mutant, "seconds": seconds, "tests": fastest})
    return {"seed": seed, "count": count, "places": len(places), "packages": [*packages], "mutants": drawn}


@dataclass
class CoveredLines:
    """The tests that execute each line of the sources."""

    #: The contents of the file that `cover` wrote.
    coverage: dict[str, Any]
    #: Path -> text of each module.
    sources: Mapping[str, str]

    def fastest_tests(self, path: str, site: Site, count: int) -> tuple[list[str], float]:
        """Return the ids of the fastest tests that execute a place, and the sum of their seconds."""
        groups = (
            {test for file, line in lines for test in self._tests(file, line)}
            for lines in self._line_groups(path, site)
        )
        executing = next(filter(None, groups), set())
        ids, seconds = self.coverage["tests"], self.coverage["seconds"]
        fastest = sorted(executing, key=lambda test: (seconds[test], ids[test]))[:count]
        return [ids[test] for test in fastest], round(sum(seconds[test] for test in fastest), 3)

    def _tests(self, path: str, line: int) -> Sequence[int]:
        """Return the tests that execute a line, as indexes of `coverage["tests"]`."""
        group = self.coverage["lines"].get(path, {}).get(str(line))
        return [] if group is None else self.coverage["groups"][group]

    def _line_groups(self, path: str, site: Site) -> Iterator[Iterable[tuple[str, int]]]:
        """Yield groups of lines whose tests would notice the mutant, the most specific group first.

        Code that runs at import is executed by no test. For such code the groups are the function whose
        default it is, the lines that use the defined name, in the module and in others, and the whole module.
        """
        statement = site.statement
        if not site.at_import:
            yield [(path, line) for line in site.lines]
            yield [(path, line) for line in site.statement_lines]
            return
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield [(path, line) for line in range(statement.body[0].lineno, statement.end_lineno + 1)]
        targets = [*getattr(statement, "targets", ()), *filter(None, [getattr(statement, "target", None)])]
        names = {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
        yield [(path, line) for line in _lines_with(self.sources[path], names)]
        yield [(file, line) for file, source in self.sources.items() for line in _lines_with(source, names)]
        yield [(path, int(line)) for line in self.coverage["lines"].get(path, ())]


def _lines_with(source: str, names: set[str]) -> Iterator[int]:
    """Yield the lines on which one of these names is used."""
    if not any(name in source for name in names):
        return
    for node in ast.walk(ast.parse(source)):
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        if name in names and isinstance(node, (ast.Name, ast.Attribute)):
            yield node.lineno
