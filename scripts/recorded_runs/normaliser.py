"""The fields in which two recordings of the same commit differ, each named, with what it takes away and why.

A field is found by the key of a JSON object or by a pattern in a text: a line of output, or a string in
JSON. What it finds is replaced by its name in both recordings. `Normaliser.applied` says how often that
happened, and `differing` in how many of these places the recordings did differ: a field that never differs
is not needed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

#: At most so many fields: each hides something.
MOST_FIELDS = 15


@dataclass(frozen=True)
class Field:
    """`keys`: of JSON objects, whose whole values go; `pattern`: in texts, what it finds goes."""

    name: str
    why: str
    keys: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None

    word: str | None = None

    def of_text(self, text: str) -> list[str]:
        """The parts of a text that the rule finds."""
        return self.pattern.findall(text) if self.pattern else []

    def without(self, text: str) -> str:
        """A text with the name of the field (or `word`) in the place of what it finds."""
        word = f"<{self.name}>" if self.word is None else self.word
        return self.pattern.sub(word, text) if self.pattern else text


PROGRESS = Field(
    "progress",
    "bars are drawn again as time goes by",
    pattern=re.compile(r"(?:^|\r)[^\r\n\[\]]{0,160}\[\d+:\d\d[<,][^\]\r\n]*\]|\r *", re.MULTILINE),
    word="",
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
    """Compares values of two recordings without what the fields take away. `places`: absolute paths -> their
    word, for each side; `modules`: old -> new dotted paths, replaced in the old texts."""

    places: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    modules: Mapping[str, str] = field(default_factory=dict)
    applied: Counter[str] = field(default_factory=Counter)
    differing: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        assert len(FIELDS) + 2 <= MOST_FIELDS
        longest = sorted(self.modules, key=len, reverse=True)
        words = "|".join(map(re.escape, longest))
        self._module = re.compile(rf"(?<![\w.])(?:{words})(?![\w])") if longest else None

    def of_key(self, key: str) -> Field | None:
        """The field that hides the value of this key, if there is one."""
        return next((entry for entry in FIELDS if key in entry.keys), None)

    def hide(self, entry: Field, differs: bool, times: int = 1) -> None:
        """Count what was hidden."""
        self.applied[entry.name] += times
        self.differing[entry.name] += differs

    def texts(self, old: str, new: str) -> tuple[str, str]:
        """Returns both texts, normalised."""
        pair = (self._placed(old, 0), self._placed(new, 1))
        self._count("path", old, new, pair)
        if self._module is not None:
            renamed = self._module.sub(lambda match: self.modules[match[0]], pair[0])
            self._count("module", pair[0], pair[1], (renamed, pair[1]))
            pair = (renamed, pair[1])
        for entry in FIELDS:
            if hidden := entry.of_text(pair[0]):
                self.hide(entry, hidden != entry.of_text(pair[1]), len(hidden))
            pair = (entry.without(pair[0]), entry.without(pair[1]))
        return pair

    def _placed(self, text: str, side: int) -> str:
        for path, word in self.places[side].items():
            text = text.replace(path, word)
        return text

    def _count(self, name: str, old: str, new: str, pair: tuple[str, str]) -> None:
        if (old, new) != pair:
            self.applied[name] += 1
            self.differing[name] += old != new

    def table(self) -> list[str]:
        """A line for each field: its name, its places, and in how many of them the recordings differ."""
        whys = {"path": "where the checkout and its Python are", "module": "modules that were renamed"}
        whys |= {entry.name: entry.why for entry in FIELDS}
        return [
            f"  {name:12} {self.applied[name]:7,} places, {self.differing[name]:7,} of them differ: {why}"
            for name, why in whys.items()
        ]
