"""Checks that after a renaming the tests make the same assertions as before.

    python scripts/compare_assertions.py OLD_REV NEW_REV --renames renames.json

For each function of the tests, by file, class and name, the assertions of both revisions are compared as
multisets: `assert` statements, `pytest.raises` and similar calls with their `match=`, `assert_*` calls of
mocks, and the cases of `pytest.mark.parametrize`. Nested functions belong to the outer one. Functions that
are not tests are compared, too, since they may contain checks that tests share.

Assertions are equal up to the renames: a name and its new name count as the same name in both revisions, and
so do the dotted and slashed paths of modules, also in strings. Whether a part of a string is a name or a path
is decided by its form alone. renames.json has three maps, each of which may be missing:

    {"modules": {"rag_r1.runs.response_cache": "rag_r1.inference.response_cache"},
     "names": {"Tape": "ResponseCache"},
     "tests": {"tests/evaluation/test_tape.py": "tests/inference/test_response_cache.py"}}

`names` may also be a list of {"module", "old", "new"}, as the modules define them. A test that is missing in
its file is searched by class and name in the other files (it was moved), and then by its assertions in its
own file (it was renamed). The exit status is 1 if a test was lost, or if its assertions differ.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from renames import Renames

#: File, class (dotted, empty for a function of the module), name.
Key = tuple[str, str, str]
_RAISES = {"raises", "warns", "deprecated_call", "fail"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Assertion:
    """An assertion with canonical names; two are equal if their syntax trees are."""

    dump: str
    #: The source text, for messages.
    text: str = field(compare=False)


Assertions = Counter[Assertion]


class _Canonical(ast.NodeTransformer):
    """Replaces names, attributes, keywords and strings by their canonical words.

    `imported` has the paths of renamed modules by the names under which the file imports them.
    """

    def __init__(self, renames: Renames, imported: Mapping[str, str]):
        self.renames, self.imported = renames, imported

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("id", "attr", "arg", "name"):
            if isinstance(value := getattr(node, name, None), str):
                setattr(node, name, self.renames.name(value))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = self.renames.text(node.value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(self.imported[node.id]) if node.id in self.imported else self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if (dotted := _dotted(node)) is not None and (known := self.renames.text(dotted)) != dotted:
            return ast.Constant(known)
        return self.generic_visit(node)


def _imported(tree: ast.AST, renames: Renames) -> dict[str, str]:
    """Return name -> canonical path for the renamed modules that a file imports."""
    paths = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            paths |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            paths |= {alias.asname: alias.name for alias in node.names if alias.asname}
    return {name: renames.text(path) for name, path in paths.items() if renames.is_module(path)}


def _dotted(node: ast.AST) -> str | None:
    """Return an attribute such as `a.b.c` as text if it has three parts or more, since it may be a module."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or len(parts) < 2:
        return None
    return ".".join([node.id, *reversed(parts)])


def assertions_of(source: str, path: str, renames: Renames) -> dict[Key, Assertions]:
    """Return the canonical assertions of each function in a file; `<module>` has those outside functions."""
    tree = ast.parse(source, path)
    canonical = _Canonical(renames, _imported(tree, renames))
    by_function: dict[Key, Assertions] = {}

    def visit(body: Sequence[ast.stmt], inside: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{inside}.{node.name}".lstrip("."))
            elif isinstance(node, _FUNCTIONS):
                by_function.setdefault((path, inside, node.name), Counter()).update(_in(node, canonical))
            else:
                by_function.setdefault((path, inside, "<module>"), Counter()).update(_in(node, canonical))

    visit(tree.body, "")
    return {key: several for key, several in by_function.items() if several or _is_test(key)}


def _is_test(key: Key) -> bool:
    return key[2].startswith("test")


def _in(node: ast.AST, canonical: _Canonical) -> Iterator[Assertion]:
    """Yield the canonical assertions inside a node."""
    for child in ast.walk(node):
        if isinstance(child, ast.Assert):
            yield _normalised(child, canonical)
        elif isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute | ast.Name):
            name = child.func.attr if isinstance(child.func, ast.Attribute) else child.func.id
            if name in _RAISES or name.startswith("assert_") or name == "parametrize":
                yield _normalised(child, canonical)


def _normalised(node: ast.AST, canonical: _Canonical) -> Assertion:
    same = canonical.visit(deepcopy(node))
    return Assertion(ast.dump(same), ast.unparse(same))


def sources_at(revision: str, folder: str = "tests") -> dict[str, str]:
    """Return path -> text of the Python files below a folder, at a revision of this repository."""
    done = subprocess.run(
        ["git", "archive", "--format=tar", revision, folder], capture_output=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{revision}: {done.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        members = [
            member for member in archive.getmembers() if member.isfile() and member.name.endswith(".py")
        ]
        return {member.name: archive.extractfile(member).read().decode("utf-8") for member in members}  # type: ignore[union-attr]


@dataclass
class Comparison:
    """The result of comparing the functions of two revisions."""

    #: Number of functions with equal assertions.
    equal: int = 0
    #: Number of compared assertions.
    assertions: int = 0
    #: (old key, new key)
    moved: list[tuple[Key, Key]] = field(default_factory=list)
    renamed: list[tuple[Key, Key]] = field(default_factory=list)
    #: (key, removed assertions, added assertions)
    changed: list[tuple[Key, Assertions, Assertions]] = field(default_factory=list)
    lost: list[Key] = field(default_factory=list)
    added: list[Key] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether nothing is lost or changed."""
        return not self.changed and not self.lost


def compare(old: Mapping[str, str], new: Mapping[str, str], renames: Renames) -> Comparison:
    """Compare the tests of two revisions, each given as path -> text."""
    before = {
        key: value for path, text in old.items() for key, value in assertions_of(text, path, renames).items()
    }
    after = {
        key: value for path, text in new.items() for key, value in assertions_of(text, path, renames).items()
    }
    result = Comparison()
    missing = []
    here = Renames(names=renames.names)
    places = {_place(key, here): key for key in after}
    for key, asserted in before.items():
        place = _place(key, renames)
        if place in places:
            _matched(result, key, asserted, after.pop(places[place]))
        else:
            missing.append((key, place, asserted))
    for key, place, asserted in missing:
        elsewhere = [
            other for other in after if _place(other, here)[1:] == place[1:] and place[2] != "<module>"
        ]
        alike = [other for other in after if other[0] == place[0] and asserted and after[other] == asserted]
        if len(elsewhere) == 1:
            result.moved.append((key, elsewhere[0]))
            _matched(result, key, asserted, after.pop(elsewhere[0]))
        elif len(alike) == 1:
            result.renamed.append((key, alike[0]))
            _matched(result, key, asserted, after.pop(alike[0]))
        else:
            result.lost.append(key)
    result.added = sorted(after)
    return result


def _place(key: Key, renames: Renames) -> Key:
    """Return where a function should be after the renames, in canonical names."""
    path, inside, name = key
    return renames.file(path), ".".join(map(renames.name, inside.split("."))), renames.name(name)


def _matched(result: Comparison, key: Key, before: Assertions, after: Assertions) -> None:
    """Record whether the assertions of a function are equal in both revisions."""
    result.assertions += before.total()
    if before == after:
        result.equal += 1
    else:
        result.changed.append((key, before - after, after - before))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two revisions; returns 1 if something was lost or changed."""
    parser = argparse.ArgumentParser(
        description="Do the tests of two revisions assert the same, up to renames?"
    )
    parser.add_argument("old", metavar="OLD_REV")
    parser.add_argument("new", metavar="NEW_REV")
    parser.add_argument("--renames", type=Path, metavar="FILE")
    args = parser.parse_args(arguments)
    values = json.loads(args.renames.read_text("utf-8")) if args.renames else {}
    result = compare(sources_at(args.old), sources_at(args.new), Renames.read(values))
    for title, pairs in (("moved", result.moved), ("renamed", result.renamed)):
        for first, second in pairs:
            print(f"{title}: {_label(first)} -> {_label(second)}")
    for key in result.added:
        print(f"added: {_label(key)}")
    for key, removed, added in result.changed:
        print(f"CHANGED: {_label(key)}")
        for sign, several in (("-", removed), ("+", added)):
            for assertion, count in several.items():
                print(f"    {sign} {count} x {' '.join(assertion.text.split())}")
    for key in result.lost:
        print(f"LOST: {_label(key)}")
    print(
        f"{result.equal} functions with equal assertions ({result.assertions} assertions compared), "
        f"{len(result.moved)} moved, {len(result.renamed)} renamed, {len(result.added)} added, "
        f"{len(result.changed)} CHANGED, {len(result.lost)} LOST"
    )
    return 0 if result.same else 1


def _label(key: Key) -> str:
    return "::".join(filter(None, key))


if __name__ == "__main__":
    sys.exit(main())
