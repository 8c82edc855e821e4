"""The state of work that goes on after a kill, and starts anew when what it is made from has changed.

A `StateFile` is one JSON object: the values that the work is `made_from`, which identify inputs and settings,
and beside them its state. A file that was made from other values, is cut off, or is of something else counts
as no file: the work begins again. That suits work which costs time alone; with `refuses`, other values are
refused, as in a run's folder (folder.py) or a step (steps.py), which keep what has been paid for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rag_r1.io.atomic_files import write_text
from rag_r1.io.bounded_json import MAX_FILE_BYTES, MAX_FILE_VALUES, check_json, read_json_file
from rag_r1.io.errors import TooLargeError
from rag_r1.runs.settings import changed_settings, flatten, json_roundtrip, refuse_changes

T = TypeVar("T")


@dataclass(frozen=True)
class StateFile:
    """The file of one piece of work. A file of more bytes or JSON values than the limits counts as no file,
    too. `refuses`: raise RunError for work that was made from other values."""

    path: Path
    made_from: Mapping[str, Any]
    max_bytes: int = MAX_FILE_BYTES
    max_values: int = MAX_FILE_VALUES
    refuses: bool = False

    def read(self, parse: Callable[[dict[str, Any]], T]) -> T | None:
        """Returns what `parse` makes of the file's object; None without a file of this work, or if `parse`
        raises an error of wrong data. Raises RunError if other values are refused."""
        try:
            content = read_json_file(self.path, self.max_bytes, self.max_values)
            recorded = flatten({key: content.get(key) for key in self.made_from})
            current = flatten(json_roundtrip(self.made_from))
            if self.refuses:
                refuse_changes(self.path.parent, recorded, current)
            return None if changed_settings(recorded, current) else parse(content)
        except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
            return None

    def write(
        self,
        state: Mapping[str, Any] | None = None,
        *,
        private: bool = False,
        durable: bool = False,
        refuses_too_large: bool = False,
    ) -> None:
        """Write the state; `private`, `durable`: as in `write_text`. Raises OSError; with `refuses_too_large`
        also TooLargeError, before anything is written, for a file that `read` would not take."""
        content = json.dumps({**self.made_from, **(state or {})}, ensure_ascii=False, default=str) + "\n"
        if refuses_too_large:
            data = content.encode("utf-8", "surrogatepass")
            if len(data) > self.max_bytes:
                raise TooLargeError(f"it has more than {self.max_bytes:,} bytes")
            check_json(data, self.max_values)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, content, private=private, durable=durable)

    def remove(self) -> None:
        """Remove the file, if there is one: the work begins again."""
        self.path.unlink(missing_ok=True)
