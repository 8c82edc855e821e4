"""The source of veRL, installed or in a wheel: where a name is defined, its signature, its lines, a hash.

Nothing is imported: files are found (`find_spec` of a top package runs none of its code) and parsed, which
takes milliseconds where an import of veRL takes ten seconds. A name is followed through re-exports and
through base classes to its definition.

**The hash** is that of the syntax tree (syntax.py says why it is the same on every Python).

**The lines** of a definition, as hashes of 24 bits without their indentation, are for people: they say which
lines of the installed version were not in the pinned one, so that a failure shows them although no source of
veRL is kept here.

A method that is pinned by itself is left out of its class (`apart`): each change is reported once.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from zipfile import Path as ZipPath

from tests.contract.syntax import (
    DEFINITIONS,
    FUNCTIONS,
    arguments_of,
    attributes_of_self,
    class_signature,
    first_line,
    imports,
    is_one_of,
    is_text,
    names_of,
    outside_definitions,
    tree_text,
    without_comments,
)

ROOT = Path(__file__).parents[2]
THEIRS = ("verl", "transfer_queue")
#: The statements of a module that are neither imports nor definitions.
MODULE_LEVEL = "<module>"


class Module:
    """One file, parsed when it is needed."""

    def __init__(self, name: str, path: str, text: str, is_package: bool):
        self.name, self.path, self.text = name, path, text
        self.package = name if is_package else name.rpartition(".")[0]

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def code(self) -> list[str]:
        """The lines, without comments."""
        return without_comments(self.text)

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """Those of the top level, and within its conditions and tries."""
        return list(outside_definitions(self.tree.body))

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """Local name -> (module, name there, empty for the module itself)."""
        return {
            local: target
            for node in self.statements
            if isinstance(node, ast.Import | ast.ImportFrom)
            for local, target in imports(node, self.package)
        }

    @cached_property
    def defined(self) -> dict[str, list[ast.stmt]]:
        """Name -> its definitions and assignments."""
        nodes: dict[str, list[ast.stmt]] = {}
        for node in self.statements:
            for name in names_of(node):
                nodes.setdefault(name, []).append(node)
        return nodes


@dataclass(frozen=True)
class Definition:
    """What stands under a name: one definition, or all the statements that assign it."""

    module: Module
    name: str
    nodes: tuple[ast.AST, ...]

    @property
    def key(self) -> tuple[str, str]:
        return self.module.name, self.name

    @property
    def line(self) -> int:
        return min(first_line(node) for node in self.nodes)

    @property
    def signature(self) -> str:
        """Arguments, also of a class; the bases and fields of a class; the annotation of what is assigned."""
        node = self.nodes[0]
        if isinstance(node, ast.ClassDef):
            return class_signature(node)
        if isinstance(node, FUNCTIONS):
            return arguments_of(node)
        annotation = next((n.annotation for n in self.nodes if isinstance(n, ast.AnnAssign)), None)
        return f": {ast.unparse(annotation)}" if annotation else "assigned"

    def digest(self, apart: Collection[str] = ()) -> str:
        text = "\n".join(tree_text(node, apart) for node in self.nodes)
        return sha256(text.encode()).hexdigest()[:16]

    def lines(self, apart: Collection[str] = ()) -> list[tuple[int, str]]:
        """(number, text) of the lines that hold code: no comments, no docstrings, nothing of `apart`."""
        chosen = {n for node in self.nodes for n in range(first_line(node), node.end_lineno + 1)}
        for node in self.nodes:
            for inner in ast.walk(node):
                if is_text(inner) or (inner is not node and is_one_of(inner, apart)):
                    chosen -= set(range(first_line(inner), inner.end_lineno + 1))
        return [(n, text) for n in sorted(chosen) if (text := self.module.code[n - 1]).strip()]


class Sources:
    """Packages by name, each a folder (or one in a wheel) of modules; `texts` replaces those of modules."""

    def __init__(self, roots: Mapping[str, Path | ZipPath], texts: Mapping[str, str] | None = None):
        self.roots, self.texts = dict(roots), dict(texts or {})
        self._modules: dict[str, Module | None] = {}
        self._members: dict[tuple[str, str], dict[str, list[ast.stmt]]] = {}

    def module(self, name: str) -> Module | None:
        """None if there is no such module in the packages."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> Module | None:
        top, *inner = name.split(".")
        if top not in self.roots:
            return None
        folder = self.roots[top]
        for part in inner[:-1]:
            folder = folder / part
        package = folder / inner[-1] if inner else folder
        for file, end in (
            (package / "__init__.py", "/__init__.py"),
            (folder / f"{(inner or [top])[-1]}.py", ".py"),
        ):
            if file.is_file():
                text = self.texts.get(name) or file.read_text(encoding="utf-8")
                return Module(name, name.replace(".", "/") + end, text, end != ".py")
        return None

    def find(self, module: str, name: str) -> Definition | None:
        """The definition of `name` (`Class.member` for a member, also an inherited one) as seen from
        `module`; None if there is none in the packages."""
        source = self.module(module)
        if source is None:
            return None
        if name == MODULE_LEVEL:
            rest = (
                n for n in source.tree.body if not isinstance(n, (ast.Import, ast.ImportFrom, *DEFINITIONS))
            )
            nodes = tuple(node for node in rest if not is_text(node))
            return Definition(source, name, nodes) if nodes else None
        head, _, rest = name.partition(".")
        nodes = source.defined.get(head, [])
        kept = [node for node in nodes if isinstance(node, DEFINITIONS)][:1] or nodes
        if head in source.imported and not (kept and isinstance(kept[0], DEFINITIONS)):
            target, original = source.imported[head]
            names = ".".join(part for part in (original, rest) if part)
            return self.find(target, names) or self.find(f"{target}.{original}", rest or MODULE_LEVEL)
        if not kept:
            return self.find(f"{module}.{head}", rest) if rest and self.module(f"{module}.{head}") else None
        target = Definition(source, head, tuple(kept))
        if not rest:
            return target
        if not isinstance(kept[0], ast.ClassDef):
            return None
        return next((match for owner in self.line_of(target) if (match := self.member(owner, rest))), None)

    def line_of(self, cls: Definition) -> list[Definition]:
        """A class and its bases that are in the packages, in the order in which Python searches them."""
        line: list[Definition] = [cls]
        for base in cls.nodes[0].bases:
            parent = self.find(cls.module.name, ast.unparse(base))
            if parent is not None and isinstance(parent.nodes[0], ast.ClassDef):
                for base_cls in self.line_of(parent):
                    line = [other for other in line if other.key != base_cls.key] + [base_cls]
        return line

    def member(self, owner: Definition, name: str) -> Definition | None:
        """What a class itself defines under `name`: in its body, or as `self.name = ...` in a method."""
        if owner.key not in self._members:
            self._members[owner.key] = _members(owner.nodes[0])
        nodes = self._members[owner.key].get(name)
        return Definition(owner.module, f"{owner.name}.{name}", tuple(nodes)) if nodes else None


def _members(node: ast.ClassDef) -> dict[str, list[ast.stmt]]:
    """Name -> what defines it in the body of a class or, if nothing does, what assigns it to `self`."""
    members: dict[str, list[ast.stmt]] = {}
    for statement in outside_definitions(node.body):
        for name in names_of(statement):
            members.setdefault(name, []).append(statement)
    assigned: dict[str, list[ast.stmt]] = {}
    for method in node.body:
        for inner in ast.walk(method) if isinstance(method, FUNCTIONS) else ():
            for name in attributes_of_self(inner):
                assigned.setdefault(name, []).append(inner)
    return assigned | members


def installed(texts: Mapping[str, str] | None = None) -> Sources:
    """The installed packages that are there, and ours."""
    roots: dict[str, Path | ZipPath] = {"rag_r1": ROOT / "rag_r1"}
    for name in THEIRS:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            roots[name] = Path(spec.submodule_search_locations[0])
    return Sources(roots, texts)


def in_wheel(wheel: Path) -> Sources:
    """The packages in a wheel."""
    names = {name: ZipPath(wheel, f"{name}/") for name in THEIRS}
    return Sources({name: place for name, place in names.items() if place.is_dir()})
