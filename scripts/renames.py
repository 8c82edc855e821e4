"""Maps names before and after a renaming to one canonical word, for compare_assertions.py.

A name and its new name have the same word, and so have the dotted and slashed paths of modules, also in
strings. If a name has two new names, because two things had the same name, all three have one word.
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
        self._patterns = [_path_pattern(longest, separator) for separator in "./" if longest]

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> CanonicalNames:
        """Read the contents of renames.json; the name in `Class.method` is its last part."""
        names = values.get("names", {})
        pairs = (
            [(entry["old"], entry["new"]) for entry in names] if isinstance(names, list) else names.items()
        )
        words = [(old.rpartition(".")[2], new.rpartition(".")[2]) for old, new in pairs]
        return cls(values.get("modules", {}), words, values.get("tests", {}))

    def name(self, name: str) -> str:
        """Return the word for a name."""
        return self._names.get(name, name)

    def is_module(self, path: str) -> bool:
        """Return whether this is the old or the new path of a renamed module."""
        return path in self._modules

    def text(self, text: str) -> str:
        """Return a string with words in place of module paths and of the names directly after a path."""
        for separator, pattern in zip("./", self._patterns, strict=False):  # no pattern without modules
            text = pattern.sub(lambda match, separator=separator: self._path(match[0], separator), text)
        return re.sub(r"(?<=[\w])([.:])(\w+)", lambda match: match[1] + self.name(match[2]), text)

    def _path(self, path: str, separator: str) -> str:
        """Return the word for the path of a renamed module, with this separator."""
        return self._modules[path.replace(separator, ".")].replace(".", separator)

    def file(self, path: str) -> str:
        """Return the new path of a file of tests."""
        return self.tests.get(path, path)


def _path_pattern(modules: Sequence[str], separator: str) -> re.Pattern[str]:
    """Return a pattern for the paths of these modules with a separator, alone or before a further part."""
    paths = "|".join(re.escape(module.replace(".", separator)) for module in modules)
    return re.compile(rf"(?<![\w{re.escape(separator)}])(?:{paths})(?!\w)")


def _classes(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Map old and new names to one of all connected names, so that A -> B and B -> C have one word."""
    roots: dict[str, str] = {}

    def root(name: str) -> str:
        while roots.setdefault(name, name) != name:
            name = roots[name]
        return name

    for old, new in pairs:
        first, second = sorted((root(old), root(new)))
        roots[second] = first
    return {name: root(name) for name in roots}
