"""Keeps the results of a step in an append-only journal, `STEP/journal/results.ndjson`, which survives kills.

Each step has its own run folder (rag_r1/runs/folder.py: settings, lock, cached responses) and appends the
result of each piece of work as soon as it is known. A result is stored under a key, such as a round, together
with the fingerprint of its input: if the input has changed since, the result is ignored and the work is done
again. A piece of work that failed leaves a line without a value, with the number of attempts and the results
of the parts that succeeded; the next run tries only the other parts again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

from rag_r1.runs.folder import RunFolder
from rag_r1.runs.json_lines import JsonLinesFile, LinePosition

#: The id of a question, and the number of a round of its trajectory, from 1; 0 for the trajectory as a whole.
Key = tuple[str, int]


class _Entry(NamedTuple):
    """The latest line about a key."""

    #: Fingerprint of the input that the line is about.
    fingerprint: str
    position: LinePosition
    #: Number of failed attempts; 0 in the line of a result.
    attempts: int = 0


class ResultJournal:
    """The results of a step. It locks the step's folder from its creation to the end of its context. Raises
    RunError if another process uses the folder, if it was created with other settings, or if it has a line
    that cannot be read, and OSError if a file cannot be opened."""

    def __init__(self, out: Path, settings: Mapping[str, Any]):
        self._results: dict[Key, _Entry] = {}
        self._failures: dict[Key, _Entry] = {}
        with ExitStack() as opened:
            self.folder = opened.enter_context(RunFolder(out, settings))
            self._lines = JsonLinesFile(self.folder.journal / "results.ndjson", self._index_line)
            opened.callback(self._lines.close)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self._opened.close()

    def get(self, key: Key, fingerprint: str) -> Any | None:
        """Return the result for this input, or None if there is none."""
        entry = _current(self._results.get(key), fingerprint)
        return self._lines.at(entry.position)["value"] if entry else None

    def has(self, key: Key, fingerprint: str) -> bool:
        """Return whether there is a result for this input."""
        return _current(self._results.get(key), fingerprint) is not None

    def put(self, key: Key, fingerprint: str, value: Any) -> None:
        """Append a result. Raises RunError if the disk is full."""
        self._lines.append({"key": list(key), "input": fingerprint, "value": value})

    def put_failure(self, key: Key, fingerprint: str, attempts: int, parts: Sequence[Any] = ()) -> None:
        """Record that the work has failed. `attempts` counts the attempts of all runs; `parts` has the result
        of each part of the work, or None for a part that failed. Raises RunError if the disk is full."""
        line = {"key": list(key), "input": fingerprint, "attempts": attempts, "parts": list(parts)}
        self._lines.append(line)

    def attempts(self, key: Key, fingerprint: str) -> int:
        """Return the number of attempts that have failed so far for this input."""
        entry = _current(self._failures.get(key), fingerprint)
        return entry.attempts if entry else 0

    def parts(self, key: Key, fingerprint: str) -> list[Any]:
        """Return the results of the parts of work that failed for this input; [] if it has not failed."""
        entry = _current(self._failures.get(key), fingerprint)
        return self._lines.at(entry.position).get("parts", []) if entry else []

    def _index_line(self, line: Mapping[str, Any], position: LinePosition) -> None:
        """Remember the position of a line in the file. Raises KeyError, TypeError or ValueError for a line of
        another form."""
        name, number = line["key"]
        key, fingerprint = (str(name), int(number)), str(line["input"])
        if "value" in line:
            self._results[key] = _Entry(fingerprint, position)
        else:
            self._failures[key] = _Entry(fingerprint, position, int(line["attempts"]))


def _current(entry: _Entry | None, fingerprint: str) -> _Entry | None:
    """Return the entry if it is about the input with this fingerprint, and None otherwise."""
    return entry if entry is not None and entry.fingerprint == fingerprint else None


def fingerprint_of(values: Sequence[Any]) -> str:
    """Return a hash of JSON values as 16 hexadecimal digits, short enough to be part of a request's name."""
    text = json.dumps(list(values), sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
