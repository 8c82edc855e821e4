"""Maps names before and after a renaming to one canonical name, for compare_assertions.py.

A name and its new name have the same canonical name, and so have the dotted and slashed paths of modules,
also in strings. If a name has two new names, because two things had the same name, all three have one. So a
comparison cannot see that one of them stands in another's place: if two names are swapped, they count as one.
A path with a part or a slash before it, such as `./a/b`, is not that of a module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class CanonicalNames:
    """The names that count as equal."""

    #: Old -> new dotted path of a module.
    modules: Mapping[str, str] = field(default_factory=dict)
    #: Pairs of an old and a new name.
    names: Sequence[tuple[str, str]] = ()
    #: Old -> new path of a file of tests.
    tests: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = _classes(self.names)
        self._modules = _classes(self.modules.items())
        longest = sorted(self._modules, key=len, reverse=True)
        separators = "./" if longest else ""
        self._patterns = {separator: _path_pattern(longest, separator) for separator in separators}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> CanonicalNames:
        """Read the contents of renames.json, whose `names` map old to new names or are a list of mappings
        with `old` and `new`. Of `Class.method` only the last part is a name, in whatever class it stands."""
        names = values.get("names", {})
        pairs = (
            [(entry["old"], entry["new"]) for entry in names] if isinstance(names, list) else names.items()
        )
        last_parts = [(old.rpartition(".")[2], new.rpartition(".")[2]) for old, new in pairs]
        return cls(values.get("modules", {}), last_parts, values.get("tests", {}))

    def name(self, name: str) -> str:
        """Return the canonical name for a name."""
        return self._names.get(name, name)

    def is_module(self, path: str) -> bool:
        """Return whether this is the old or the new path of a renamed module."""
        return path in self._modules

    def text(self, text: str) -> str:
        """Return a string with canonical paths of modules and canonical names after a dot or a colon."""
        for separator, pattern in self._patterns.items():
            text = pattern.sub(lambda match, separator=separator: self._path(match[0], separator), text)
        return re.sub(r"(?<=[\w])([.:])(\w+)", lambda match: match[1] + self.name(match[2]), text)

    def _path(self, path: str, separator: str) -> str:
        """Return the canonical path of a renamed module, with this separator."""
        return self._modules[path.replace(separator, ".")].replace(".", separator)

    def file(self, path: str) -> str:
        """Return the new path of a file of tests."""
        return self.tests.get(path, path)


def _path_pattern(modules: Sequence[str], separator: str) -> re.Pattern[str]:
    """Return a pattern for the paths of these modules with a separator, alone or before a further part."""
    paths = "|".join(re.escape(module.replace(".", separator)) for module in modules)
    return re.compile(rf"(?<![\w{re.escape(separator)}])(?:{paths})(?!\w)")


def _classes(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Map old and new names to one of all connected names, so that A -> B and B -> C have the same."""
    roots: dict[str, str] = {}

    def root(name: str) -> str:
        while roots.setdefault(name, name) != name:
            name = roots[name]
        return name

    for old, new in pairs:
        first, second = sorted((root(old), root(new)))
        roots[second] = first
    return {name: root(name) for name in roots}
