"""Where this project touches veRL and its store: found in the source, as far as it can be.

- imported: `from verl... import name`, and attributes of what was imported
- registered: an imported name that decorates one of our classes; veRL finds that class by it
- overridden: a member of one of our classes that a base of veRL's defines, too. A mixin counts with the bases
  of each class that is made with it
- inherited: a member of veRL's that such a class reads or sets
- private: imported or inherited, with an underscore in front
- run: the `main` of a module that is started as a process
- cited: a file of veRL and names in it, in a comment, a docstring, a recipe or a guide, written as
  trainer/ppo/v1/trainer_base.py, `_update_actor`, `_update_critic` (lines have numbers only until the next
  release)
- declared: what no scan can see (declared.yaml): objects that veRL hands to us, files and variables that it
  reads

A name stands for its definition: `PPOTrainerSync` of `verl.trainer.ppo.v1` is that of
`verl.trainer.ppo.v1.trainer_sync`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from tests.contract.syntax import FUNCTIONS, imports, is_text, names_of, outside_definitions
from tests.contract.verl_source import ROOT, THEIRS, Definition, Sources

#: Place -> module of veRL -> its names there, and why.
DECLARED = yaml.safe_load(Path(__file__).with_name("declared.yaml").read_text("utf-8"))
#: Text files in which veRL is cited, besides our modules.
PAGES = ("recipes/**/*.yaml", "recipes/**/*.md", "docs/*.md", "docs/guides/*.md")
_NAMES = r"(?:, (?:and )?`[A-Za-z_][\w.]*`(?: and `[A-Za-z_][\w.]*`)*)"
CITATION = re.compile(rf"(?P<path>(?<![\w.])[\w/-]+\.py|\bthe same file)\b`?(?P<names>{_NAMES}*)")
DOTTED = re.compile(r"verl(?:\.\w+)+")
_TOUCHES = re.compile(r"\b(?:from|import) (?:verl|transfer_queue)\b|\"verl\.")


class Scan:
    """The contacts of the package rag_r1 in `root`, and of PAGES there, with the packages of `sources`."""

    def __init__(self, sources: Sources, root: Path = ROOT, declared: Mapping[str, Any] = DECLARED):
        self.sources, self.root = sources, root
        #: (module, name) -> kind -> the files in which it is so.
        self.contacts: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        #: What was not found in veRL, or is not clear.
        self.faults: list[str] = []
        for path in sorted((root / "rag_r1").rglob("*.py")):
            text, place = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
            if _TOUCHES.search(text):
                self._imports(place, ast.parse(text))
            if any(self._candidates(place, match["path"]) for match in CITATION.finditer(text)):
                self._citations(place, prose(text))
        for path in sorted(path for pattern in PAGES for path in root.glob(pattern)):
            text = re.sub(r"\n *#", "\n", path.read_text("utf-8"))
            self._citations(path.relative_to(root).as_posix(), " ".join(text.split()))
        for path in sorted((root / "rag_r1" / "plugin").rglob("*.py")):
            self._classes(_dotted(path.relative_to(root)))
        for place, modules in declared.items():
            for module, contact in modules.items():
                for name in contact["names"]:
                    self._add("declared", place, module, name)

    def _add(self, kind: str, place: str, module: str, name: str) -> None:
        target = self.sources.find(module, name)
        if target is None:
            self.faults.append(f"{place}: {module} has no {name}")
        elif target.module.name.split(".")[0] in THEIRS:
            self._note(kind, place, target)

    def _note(self, kind: str, place: str, target: Definition) -> None:
        last = target.name.rpartition(".")[2]
        hidden = last.startswith("_") and not last.endswith("__")
        kind = "private" if hidden and kind in ("imported", "inherited") else kind
        self.contacts[target.key][kind].add(place)

    def _imports(self, place: str, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        names = {
            local: target
            for node in nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
            for local, target in imports(node, "rag_r1")
            if target[0].split(".")[0] in THEIRS
        }
        decorators = {
            ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
            for node in nodes
            if isinstance(node, ast.ClassDef)
            for decorator in node.decorator_list
        }
        for local, (module, name) in names.items():
            if name:
                self._add("registered" if local in decorators else "imported", place, module, name)
        for node in nodes:
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in names
            ):
                module, name = names[node.value.id]
                kind = "registered" if ast.unparse(node) in decorators else "imported"
                self._add(kind, place, module, f"{name}.{node.attr}" if name else node.attr)
            elif (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and DOTTED.fullmatch(node.value)
            ):
                self._started(place, node.value)

    def _started(self, place: str, name: str) -> None:
        """A string that is a module's name is that of a process."""
        module = self.sources.module(name)
        if module is not None:
            started = f"{name}.__main__" if module.package == name else name
            self._add("run", place, started, "main")

    def _classes(self, name: str) -> None:
        for node in self.sources.module(name).statements:
            if isinstance(node, ast.ClassDef):
                self._class(self.sources.find(name, node.name))

    def _class(self, cls: Definition) -> None:
        line = self.sources.line_of(cls)
        ours = [base for base in line if base.module.name.startswith("rag_r1")]
        theirs = [base for base in line if base.module.name.split(".")[0] in THEIRS]
        if not theirs:
            return
        bodies = (base.nodes[0].body for base in ours)
        defined = {name for body in bodies for node in outside_definitions(body) for name in names_of(node)}
        for base in ours:
            for kind, names in (("overridden", _members(base)), ("inherited", _of_self(base) - defined)):
                for name in names:
                    members = (self.sources.member(owner, name) for owner in theirs)
                    member = next(filter(None, members), None)
                    if member is not None:
                        self._note(kind, base.module.path, member)

    def _citations(self, place: str, text: str) -> None:
        last = ""
        for match in CITATION.finditer(text):
            same = match["path"] == "the same file"
            candidates = [last] if same and last else self._candidates(place, match["path"])
            if not candidates:
                continue
            names = re.findall(r"`([\w.]+)`", match["names"])
            right = [module for module in candidates if all(self.anywhere(module, name) for name in names)]
            if not names:
                self.faults.append(f"{place}: {match[0]}: name the function or class: file.py, `name`")
            elif len(right) != 1:
                reason = f"it may be each of {right}" if right else "no such file of veRL has these names"
                self.faults.append(f"{place}: {match[0]}: {reason}")
            else:
                last = right[0]
                for name in names:
                    self._add("cited", place, last, self.anywhere(last, name))

    def _candidates(self, place: str, path: str) -> list[str]:
        """The modules of veRL that a path may mean; none for a path of ours."""
        above = [folder for folder in (self.root / place).parents if folder.is_relative_to(self.root)]
        if any((folder / path).is_file() for folder in above):
            return []
        return [name for file, name in self.paths_of_verl if file.endswith(f"/{path}")]

    @cached_property
    def paths_of_verl(self) -> list[tuple[str, str]]:
        """(path from above the package, with a slash in front; dotted name) of every module of veRL."""
        folder = self.sources.roots.get("verl")
        if not isinstance(folder, Path):
            return []
        files = [Path("verl", path.relative_to(folder)) for path in folder.rglob("*.py")]
        return [(f"/{file.as_posix()}", _dotted(file)) for file in files]

    def anywhere(self, module: str, name: str) -> str | None:
        """The whole name of `name` in a module: itself, or that of the first class that has such a member."""
        source = self.sources.module(module)
        if source is None:
            return None
        owners = [node.name for node in source.statements if isinstance(node, ast.ClassDef)]
        for whole in (name, *(f"{owner}.{name}" for owner in owners)):
            target = self.sources.find(module, whole)
            if target is not None and target.module.name == module:
                return whole
        return None


def prose(source: str) -> str:
    """The docstrings of a module and its blocks of comments, a line each."""
    texts = [node.value.value for node in ast.walk(ast.parse(source)) if is_text(node)]
    for comment, lines in groupby(map(str.strip, source.splitlines()), lambda line: line.startswith("#")):
        if comment:
            texts.append(" ".join(line.lstrip("#: ") for line in lines))
    return "\n".join(" ".join(text.split()) for text in texts)


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _members(cls: Definition) -> set[str]:
    body = cls.nodes[0].body
    return {name for node in body if isinstance(node, (*FUNCTIONS, ast.Assign)) for name in names_of(node)}


def _of_self(cls: Definition) -> set[str]:
    """The attributes of `self` that a class reads or sets, and those of `super()`."""
    names = set()
    for node in ast.walk(cls.nodes[0]):
        if isinstance(node, ast.Attribute):
            value = node.value
            called = value.func if isinstance(value, ast.Call) else value
            if isinstance(called, ast.Name) and called.id in ("self", "super", "cls"):
                names.add(node.attr)
    return names
