"""Hides the values in which two recordings of the same commit differ.

Each kind of such values is a `Field` with a name and a reason. A field is found by the key of a JSON object,
or by a pattern in a text, which is a line of output or a string in JSON. The matches are replaced by the name
of the field in both recordings. `Normaliser.applied` counts the replacements, and `differing` counts those
where the recordings differed: a field that never differs is not needed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

#: The limit for the number of fields, since each of them could also hide a fault.
MAX_FIELDS = 15


@dataclass(frozen=True)
class Field:
    """A kind of values that differ from run to run."""

    name: str
    reason: str
    #: Keys of JSON objects whose values are hidden.
    keys: frozenset[str] = frozenset()
    #: Matches the hidden parts of texts.
    pattern: re.Pattern[str] | None = None
    #: The replacement in texts, by default the name in angle brackets.
    replacement: str | None = None

    def hidden_parts(self, text: str) -> list[str]:
        """Return the hidden parts of a text."""
        return self.pattern.findall(text) if self.pattern else []

    def hide_in(self, text: str) -> str:
        """Return a text in which the hidden parts are replaced."""
        replacement = f"<{self.name}>" if self.replacement is None else self.replacement
        return self.pattern.sub(replacement, text) if self.pattern else text


PROGRESS = Field(
    "progress",
    "bars are drawn again as time goes by",
    pattern=re.compile(r"(?:^|\r)[^\r\n\[\]]{0,160}\[\d+:\d\d[<,][^\]\r\n]*\]|\r *", re.MULTILINE),
    replacement="",
)
FIELDS = (
    PROGRESS,
    Field(
        "seconds",
        "times that were measured, and whether a cache was in time",
        frozenset({"seconds", "generate_s", "tool_s", "cached"}),
        re.compile(
            r"^\W*seconds a question.*$|(?<=: done in )\d+ s|(?<=\()\d+\.\d\d s(?=\))|(?<=\d, )\d+\.\d s$",
            re.MULTILINE,
        ),
    ),
    Field(
        "time of day",
        "when a command ran",
        frozenset({"started", "created"}),
        re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:,\d{3}|\+00:00)"),
    ),
    Field(
        "port",
        "free ports of servers on loopback",
        pattern=re.compile(r"(?<=127\.0\.0\.1:)\d+|(?<=--port )\d{4,}"),
    ),
    Field(
        "commit",
        "the recordings are of two commits",
        frozenset({"commit"}),
        re.compile(r"^\| commit\.(?:sha|changed) \|.*\|$", re.MULTILINE),
    ),
    Field("id", "ids that are drawn for a request", pattern=re.compile(r"(?<=chatcmpl-)[0-9a-f]{32}")),
)


@dataclass
class Normaliser:
    """Replaces the values in two recordings that the fields hide, and counts them."""

    #: For each recording: absolute path -> its replacement.
    places: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    #: Old -> new dotted path of a module, which is replaced in the old texts.
    modules: Mapping[str, str] = field(default_factory=dict)
    #: The name of a field, or `path` or `module` -> number of replacements.
    applied: Counter[str] = field(default_factory=Counter)
    #: The same -> number of replacements where the recordings differ.
    differing: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        assert len(FIELDS) + 2 <= MAX_FIELDS  # those of FIELDS, the paths and the modules
        longest = sorted(self.modules, key=len, reverse=True)
        paths = "|".join(map(re.escape, longest))
        self._module = re.compile(rf"(?<![\w.])(?:{paths})(?![\w])") if longest else None

    def field_of_key(self, key: str) -> Field | None:
        """Return the field that hides the value of this key, or None."""
        return next((entry for entry in FIELDS if key in entry.keys), None)

    def count_hidden(self, entry: Field, differs: bool, times: int = 1) -> None:
        """Count `times` values that a field hides. `differs` says whether the recordings differ in them."""
        self.applied[entry.name] += times
        self.differing[entry.name] += differs

    def normalise(self, old: str, new: str) -> tuple[str, str]:
        """Return the texts of the old and the new recording without the hidden parts."""
        pair = (self._replace_paths(old, 0), self._replace_paths(new, 1))
        self._count_replaced("path", old, new, pair)
        if self._module is not None:
            renamed = self._module.sub(lambda match: self.modules[match[0]], pair[0])
            self._count_replaced("module", pair[0], pair[1], (renamed, pair[1]))
            pair = (renamed, pair[1])
        for entry in FIELDS:
            if hidden := entry.hidden_parts(pair[0]):
                self.count_hidden(entry, hidden != entry.hidden_parts(pair[1]), len(hidden))
            pair = (entry.hide_in(pair[0]), entry.hide_in(pair[1]))
        return pair

    def _replace_paths(self, text: str, side: int) -> str:
        """Return a text of the old (0) or the new (1) recording without its absolute paths."""
        for path, replacement in self.places[side].items():
            text = text.replace(path, replacement)
        return text

    def _count_replaced(self, name: str, old: str, new: str, pair: tuple[str, str]) -> None:
        """Count a replacement of paths or modules that made `pair` of both texts."""
        if (old, new) != pair:
            self.applied[name] += 1
            self.differing[name] += old != new

    def table(self) -> list[str]:
        """Return a line for each field with the numbers of replacements and of differing ones."""
        reasons = {"path": "where the checkout and its Python are", "module": "modules that were renamed"}
        reasons |= {entry.name: entry.reason for entry in FIELDS}
        return [
            f"  {name:12} {self.applied[name]:7,} places, {self.differing[name]:7,} of them differ: {reason}"
            for name, reason in reasons.items()
        ]
