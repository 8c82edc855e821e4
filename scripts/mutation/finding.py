"""Finds places again after a reorganisation has moved files and renamed their contents.

`Renames` says where a function, class or constant is now. A reorganisation does not change the shape of a
statement, which is its syntax without identifiers, texts and annotations. `find` looks under the new name for
the place with the same number and kind, and compares the shapes. Formatting and comments do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mutation.sites import Site


@dataclass(frozen=True)
class Renames:
    """The renames of a reorganisation, from old to new; the longest match counts."""

    #: Dotted modules or packages.
    modules: Mapping[str, str] = field(default_factory=dict)
    #: Identifiers, or dotted names of functions, classes and constants with their modules (a.b.Class.method);
    #: the new name may be in another module.
    names: Mapping[str, str] = field(default_factory=dict)
    #: Folders, files, or whole ids of tests.
    tests: Mapping[str, str] = field(default_factory=dict)

    def place(self, tree: Path, module: str, name: str) -> tuple[str, str]:
        """Return the new module of a name, and the qualified name there."""
        parts = name.split(".") if name else []
        for end in range(len(parts), 0, -1):
            dotted = ".".join([module, *parts[:end]])
            if dotted in self.names:
                new = [*self.names[dotted].split("."), *(self.names.get(part, part) for part in parts[end:])]
                lengths = (count for count in range(1, len(new)) if file_of(tree, ".".join(new[:count])))
                length = max(lengths, default=1)  # of the longest beginning that is a module
                return ".".join(new[:length]), ".".join(new[length:])
        new_name = ".".join(self.names.get(part, part) for part in parts)
        return _replace_prefix(module, self.modules, "."), new_name

    def test(self, test: str) -> str:
        """Return the new id of a test, `path::name[parameters]`."""
        if test in self.tests:
            return self.tests[test]
        base, bracket, parameters = test.partition("[")
        path, *names = base.split("::")
        for end in range(len(names), 0, -1):
            if (known := "::".join([path, *names[:end]])) in self.tests:
                return "::".join([self.tests[known], *names[end:]]) + bracket + parameters
        return "::".join([_replace_prefix(path, self.tests, "/"), *names]) + bracket + parameters


def _replace_prefix(path: str, renames: Mapping[str, str], separator: str) -> str:
    """Return a path with the new name of its longest renamed beginning, or unchanged without one."""
    parts = path.split(separator)
    for end in range(len(parts), 0, -1):
        if (prefix := separator.join(parts[:end])) in renames:
            return separator.join([renames[prefix], *parts[end:]])
    return path


def file_of(tree: Path, module: str) -> Path | None:
    """Return the file of a module, or None if there is none."""
    path = tree.joinpath(*module.split("."))
    for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


def find(
    places: Sequence[Site], name: str, kind: str, ordinal: int, siblings: int, shape: str
) -> Site | None:
    """Return the place of this kind under `name` that a drawn mutant had, or None.

    It is the place with the same number, if its statement has the same shape or `name` has as many places as
    before, or else the only place there of that kind and shape.
    """
    candidates = [site for site in places if site.name == name]
    alike = [site for site in candidates if site.kind == kind and site.shape == shape]
    if ordinal < len(candidates) and (site := candidates[ordinal]).kind == kind:
        if site.shape == shape or len(candidates) == siblings:
            return site
    return alike[0] if len(alike) == 1 else None
