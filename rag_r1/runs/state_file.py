"""The state of work that goes on after a kill, and starts anew when what it is made from has changed.

A `StateFile` is one JSON object: the values that the work is `made_from`, which identify inputs and settings,
and beside them its state. A file that was made from other values, is cut off, or is of something else is as
none: the work begins again. So it is for what costs time alone; with `refuses`, other values are refused, as
in a run's folder (folder.py) or a step (steps.py), which keep what has been paid for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rag_r1.io.atomic_files import write_text
from rag_r1.io.bounded_json import MAX_FILE_BYTES, MAX_FILE_VALUES, read_json_file
from rag_r1.runs.settings import changed_settings, flatten, json_roundtrip, refuse_changes

T = TypeVar("T")


@dataclass(frozen=True)
class StateFile:
    """See the top of the module. A larger file, in bytes or in values, is as none, too. `refuses`: raise
    RunError for work that was made from other values."""

    path: Path
    made_from: Mapping[str, Any]
    most_bytes: int = MAX_FILE_BYTES
    most_values: int = MAX_FILE_VALUES
    refuses: bool = False

    def read(self, parse: Callable[[dict[str, Any]], T]) -> T | None:
        """What `parse` makes of the file's object; None without a file of this work, and if `parse` raises an
        error of wrong data."""
        try:
            content = read_json_file(self.path, self.most_bytes, self.most_values)
            recorded = {key: content.get(key) for key in self.made_from}
            recorded, current = flatten(recorded), flatten(json_roundtrip(self.made_from))
            if self.refuses:
                refuse_changes(self.path.parent, recorded, current)
            return None if changed_settings(recorded, current) else parse(content)
        except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
            return None

    def write(self, state: Mapping[str, Any] | None = None, **how: Any) -> None:
        """Write the state; `how`: as in `write_text`. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps({**self.made_from, **(state or {})}, ensure_ascii=False, default=str)
        write_text(self.path, content + "\n", **how)

    def remove(self) -> None:
        """Remove the file, if there is one: the work begins again."""
        self.path.unlink(missing_ok=True)
