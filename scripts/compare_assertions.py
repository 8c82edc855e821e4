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
from typing import NamedTuple

from renames import CanonicalNames

_RAISES = {"raises", "warns", "deprecated_call", "fail"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: The name of a key for the assertions outside functions.
_OUTSIDE = "<module>"


class Key(NamedTuple):
    """A function of the tests."""

    file: str
    #: The dotted name of its class; empty for a function of the module.
    class_name: str
    name: str


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

    def __init__(self, renames: CanonicalNames, imported: Mapping[str, str]):
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


def _imported(tree: ast.AST, renames: CanonicalNames) -> dict[str, str]:
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


def assertions_of(source: str, path: str, renames: CanonicalNames) -> dict[Key, Assertions]:
    """Return the canonical assertions of each function in a file; `<module>` has those outside functions."""
    tree = ast.parse(source, path)
    canonical = _Canonical(renames, _imported(tree, renames))
    by_function: dict[Key, Assertions] = {}

    def visit(body: Sequence[ast.stmt], class_name: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{class_name}.{node.name}".lstrip("."))
                continue
            key = Key(path, class_name, node.name if isinstance(node, _FUNCTIONS) else _OUTSIDE)
            by_function.setdefault(key, Counter()).update(_assertions_in(node, canonical))

    visit(tree.body, "")
    return {key: found for key, found in by_function.items() if found or key.name.startswith("test")}


def _assertions_in(node: ast.AST, canonical: _Canonical) -> Iterator[Assertion]:
    """Yield the canonical assertions inside a node."""
    for child in ast.walk(node):
        if isinstance(child, ast.Assert):
            yield _canonical_assertion(child, canonical)
        elif isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute | ast.Name):
            name = child.func.attr if isinstance(child.func, ast.Attribute) else child.func.id
            if name in _RAISES or name.startswith("assert_") or name == "parametrize":
                yield _canonical_assertion(child, canonical)


def _canonical_assertion(node: ast.AST, canonical: _Canonical) -> Assertion:
    """Return the assertion with canonical names; the node itself is not changed."""
    renamed = canonical.visit(deepcopy(node))
    return Assertion(ast.dump(renamed), ast.unparse(renamed))


def sources_at(revision: str, folder: str = "tests") -> dict[str, str]:
    """Return path -> text of the Python files below a folder, at a revision of this repository.

    Raises SystemExit if git does not know the revision or the folder.
    """
    archiving = subprocess.run(
        ["git", "archive", "--format=tar", revision, folder], capture_output=True, check=False
    )
    if archiving.returncode:
        raise SystemExit(f"{revision}: {archiving.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(archiving.stdout)) as archive:
        members = [item for item in archive.getmembers() if item.isfile() and item.name.endswith(".py")]
        return {member.name: archive.extractfile(member).read().decode("utf-8") for member in members}  # type: ignore[union-attr]


class ChangedFunction(NamedTuple):
    """A function whose assertions differ."""

    key: Key
    removed: Assertions
    added: Assertions


@dataclass
class Comparison:
    """The result of comparing the functions of two revisions."""

    #: Number of functions with equal assertions.
    equal: int = 0
    #: Number of compared assertions.
    assertions: int = 0
    #: Pairs of the old and the new key.
    moved: list[tuple[Key, Key]] = field(default_factory=list)
    renamed: list[tuple[Key, Key]] = field(default_factory=list)
    changed: list[ChangedFunction] = field(default_factory=list)
    lost: list[Key] = field(default_factory=list)
    added: list[Key] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether nothing is lost or changed."""
        return not self.changed and not self.lost


def compare(old: Mapping[str, str], new: Mapping[str, str], renames: CanonicalNames) -> Comparison:
    """Compare the tests of two revisions, each given as path -> text."""
    before, after = (
        {key: found for path in files for key, found in assertions_of(files[path], path, renames).items()}
        for files in (old, new)
    )
    result = Comparison()
    missing = []
    in_new = CanonicalNames(names=renames.names)  # files of the new revision already have their new paths
    new_keys = {_canonical_key(key, in_new): key for key in after}
    for key, assertions in before.items():
        expected = _canonical_key(key, renames)
        if (new_key := new_keys.get(expected)) in after:  # unless another test has become the same one
            _record(result, key, assertions, after.pop(new_key))
        else:
            missing.append((key, expected, assertions))
    for key, expected, assertions in missing:
        moved = [other for other in after if _canonical_key(other, in_new)[1:] == expected[1:]]
        renamed = [other for other in after if other.file == expected.file and after[other] == assertions]
        if len(moved) == 1 and expected.name != _OUTSIDE:
            result.moved.append((key, moved[0]))
            _record(result, key, assertions, after.pop(moved[0]))
        elif len(renamed) == 1 and assertions:
            result.renamed.append((key, renamed[0]))
            _record(result, key, assertions, after.pop(renamed[0]))
        else:
            result.lost.append(key)
    result.added = sorted(after)
    return result


def _canonical_key(key: Key, renames: CanonicalNames) -> Key:
    """Return the key that a function has after the renames, in canonical names."""
    class_name = ".".join(map(renames.name, key.class_name.split(".")))
    return Key(renames.file(key.file), class_name, renames.name(key.name))


def _record(result: Comparison, key: Key, before: Assertions, after: Assertions) -> None:
    """Record whether the assertions of a function are equal in both revisions."""
    result.assertions += before.total()
    if before == after:
        result.equal += 1
    else:
        result.changed.append(ChangedFunction(key, before - after, after - before))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two revisions; returns 1 if something was lost or changed."""
    parser = argparse.ArgumentParser(description="Do the tests of two revisions make the same assertions?")
    parser.add_argument("old", metavar="OLD_REV")
    parser.add_argument("new", metavar="NEW_REV")
    parser.add_argument("--renames", type=Path, metavar="FILE")
    args = parser.parse_args(arguments)
    values = json.loads(args.renames.read_text("utf-8")) if args.renames else {}
    result = compare(sources_at(args.old), sources_at(args.new), CanonicalNames.read(values))
    for title, pairs in (("moved", result.moved), ("renamed", result.renamed)):
        for first, second in pairs:
            print(f"{title}: {_label(first)} -> {_label(second)}")
    for key in result.added:
        print(f"added: {_label(key)}")
    for key, removed, added in result.changed:
        print(f"CHANGED: {_label(key)}")
        for sign, assertions in (("-", removed), ("+", added)):
            for assertion, count in assertions.items():
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
    """Return a key in the form of a test's id in pytest."""
    return "::".join(filter(None, key))


if __name__ == "__main__":
    sys.exit(main())
