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
class Renames:
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
        self._paths = [
            _path_pattern([path.replace(".", separator) for path in longest], separator)
            for separator in "./"
            if longest
        ]

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Renames:
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
        for separator, pattern in zip("./", self._paths, strict=False):  # without modules no pattern

            def word(match: re.Match[str], separator: str = separator) -> str:
                return self._modules[match[0].replace(separator, ".")].replace(".", separator)

            text = pattern.sub(word, text)
        return re.sub(r"(?<=[\w])([.:])(\w+)", lambda match: match[1] + self.name(match[2]), text)

    def file(self, path: str) -> str:
        """Return the new path of a file of tests."""
        return self.tests.get(path, path)


def _path_pattern(paths: Sequence[str], separator: str) -> re.Pattern[str]:
    """Return a pattern that matches any of these paths, alone or before a further part."""
    return re.compile(rf"(?<![\w{re.escape(separator)}])(?:{'|'.join(map(re.escape, paths))})(?!\w)")


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
