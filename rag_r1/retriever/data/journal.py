"""An append-only journal of a step's results, which survives kills: `STEP/journal/results.ndjson`.

A step works in a run's folder of its own (rag_r1/runs/folder.py: settings, lock, cached responses) and
appends the result of each piece of work as soon as it is there. A result belongs to a key, such as a round,
and to the input that it was found for, by fingerprint: if the input has changed since, the result does not
count, and the work is done again. A piece of work that failed leaves a line without a value, with the number
of attempts, and with those of its parts that succeeded; the next start tries the others again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from rag_r1.runs.folder import RunFolder
from rag_r1.runs.json_lines import JsonLinesFile, LinePosition

Key = tuple[str, int]


class ResultJournal:
    """The results of a step; a context manager, which holds the step's folder. Raises RunError if that is in
    use or was begun with other settings."""

    def __init__(self, out: Path, settings: Mapping[str, Any]):
        self._results: dict[Key, tuple[str, LinePosition]] = {}
        self._failed: dict[Key, tuple[str, int, LinePosition]] = {}
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
        """The result for this input; None if there is none."""
        last_input, position = self._results.get(key, ("", (0, 0)))
        return self._lines.at(position)["value"] if last_input == fingerprint else None

    def has(self, key: Key, fingerprint: str) -> bool:
        """Whether there is a result for this input."""
        return self._results.get(key, ("", None))[0] == fingerprint

    def put(self, key: Key, fingerprint: str, value: Any) -> None:
        """Append a result. Raises RunError on a full disk."""
        self._lines.append({"key": list(key), "input": fingerprint, "value": value})

    def put_failure(self, key: Key, fingerprint: str, attempts: int, parts: Sequence[Any] = ()) -> None:
        """Append that the work has failed. `attempts`: how many, over all starts; `parts`: the result of each
        part of the work, None for one that failed. Raises RunError on a full disk."""
        line = {"key": list(key), "input": fingerprint, "attempts": attempts, "parts": list(parts)}
        self._lines.append(line)

    def attempts(self, key: Key, fingerprint: str) -> int:
        """The number of attempts that have failed until now, for this input."""
        last_input, attempts, _ = self._failed.get(key, ("", 0, (0, 0)))
        return attempts if last_input == fingerprint else 0

    def parts(self, key: Key, fingerprint: str) -> list[Any]:
        """The results of the parts of a piece of work that failed, for this input; [] if it has not
        failed."""
        last_input, _, position = self._failed.get(key, ("", 0, (0, 0)))
        return self._lines.at(position).get("parts", []) if last_input == fingerprint else []

    def _index_line(self, line: Mapping[str, Any], position: LinePosition) -> None:
        """Remember where a line of the file stands."""
        name, number = line["key"]
        key, fingerprint = (str(name), int(number)), str(line["input"])
        if "value" in line:
            self._results[key] = fingerprint, position
        else:
            self._failed[key] = fingerprint, int(line["attempts"]), position


def fingerprint_of(values: Sequence[Any]) -> str:
    """A hash of JSON values in 16 hexadecimal digits, short enough for the name of a piece of work."""
    text = json.dumps(list(values), sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
