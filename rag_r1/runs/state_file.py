"""Stores the state of resumable work, which starts over if its inputs or settings have changed.

A `StateFile` is one JSON object. It contains the state of the work, and the values that the work is
`made_from`, which identify its inputs and settings. By default a file that was made from other values, is
truncated, or belongs to something else counts as missing, and the work starts over. This suits work that
costs only time. With `refuses_changes`, other values are refused instead, as in a run's folder (folder.py) or
a step (steps.py), whose results have been paid for.
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
from rag_r1.runs.json_lines import PARSE_ERRORS
from rag_r1.runs.settings import changed_settings, flatten, json_roundtrip, refuse_changes

State = TypeVar("State")


@dataclass(frozen=True)
class StateFile:
    """The state file of one piece of work."""

    path: Path
    #: The values that identify the inputs and settings of the work.
    made_from: Mapping[str, Any]
    #: A file of more bytes or JSON values than these counts as missing.
    max_bytes: int = MAX_FILE_BYTES
    max_values: int = MAX_FILE_VALUES
    #: Whether work that was made from other values is refused with a RunError.
    refuses_changes: bool = False

    def read(self, parse: Callable[[dict[str, Any]], State]) -> State | None:
        """Return the result of `parse` for the object in the file. Returns None if there is no file of this
        work, or if `parse` raises one of PARSE_ERRORS (json_lines.py). Raises RunError if the work was made
        from other values and `refuses_changes` is set."""
        try:
            content = read_json_file(self.path, self.max_bytes, self.max_values)
            recorded = flatten({key: content.get(key) for key in self.made_from})
            current = flatten(json_roundtrip(self.made_from))
            if self.refuses_changes:
                refuse_changes(self.path.parent, recorded, current)
            return None if changed_settings(recorded, current) else parse(content)
        except (OSError, *PARSE_ERRORS):
            return None

    def write(
        self,
        state: Mapping[str, Any] | None = None,
        *,
        private: bool = False,
        durable: bool = False,
        refuses_too_large: bool = False,
    ) -> None:
        """Write the state, whose keys must differ from those of `made_from`. `private` and `durable` have the
        meaning they have in `write_text`. Raises OSError; with `refuses_too_large` also TooLargeError, before
        writing, for a file that `read` would treat as missing."""
        content = json.dumps({**self.made_from, **(state or {})}, ensure_ascii=False, default=str) + "\n"
        if refuses_too_large:
            data = content.encode("utf-8", "backslashreplace")
            if len(data) > self.max_bytes:
                raise TooLargeError(f"it has more than {self.max_bytes:,} bytes")
            check_json(data, self.max_values)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Lone surrogates are written as escapes of JSON, since `read` refuses a file that is not UTF-8.
        write_text(self.path, content, private=private, errors="backslashreplace", durable=durable)

    def remove(self) -> None:
        """Remove the file if it exists, so that the work starts over."""
        self.path.unlink(missing_ok=True)
