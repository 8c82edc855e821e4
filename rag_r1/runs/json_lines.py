"""Files of JSON lines that are only appended to, and survive a kill in the middle of a line."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rag_r1.io.appended_files import append_whole, json_line, open_to_append
from rag_r1.io.bounded_json import JsonLimitError, limited_lines, read_json_line
from rag_r1.runs.errors import RunError

logger = logging.getLogger(__name__)


class JsonLinesFile:
    """A file of JSON objects, one a line, that is only appended to. `on_line` is called with each object that
    is there already, and its place. Raises RunError, which names file and line."""

    def __init__(self, path: Path, on_line: Callable[[dict[str, Any], tuple[int, int]], None]):
        self.path = path
        self._file = open_to_append(path)
        self._end = 0
        try:
            self._read(on_line)
        except BaseException:
            self.close()
            raise

    def append(self, value: Mapping[str, Any]) -> tuple[int, int]:
        """Append an object; returns its place. On a full disk RunError is raised and no partial line left."""
        data = json_line(value)
        try:
            append_whole(self._file, data, self._end)
        except OSError as error:
            raise RunError(
                f"cannot write to {self.path}: {error.strerror}. What was written is kept; make room and run "
                "the same command again"
            ) from error
        place = (self._end, len(data))
        self._end += len(data)
        return place

    def at(self, place: tuple[int, int]) -> dict[str, Any]:
        """The object at a place."""
        offset, length = place
        return json.loads(os.pread(self._file, length, offset).decode("utf-8", "surrogatepass"))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self, on_line: Callable[[dict[str, Any], tuple[int, int]], None]) -> None:
        with open(os.dup(self._file), "rb") as file:
            file.seek(0)
            try:
                for number, line in enumerate(limited_lines(file), 1):
                    if not line.endswith(b"\n"):
                        logger.warning("%s: line %d was cut off by a kill and is removed", self.path, number)
                        break
                    self._read_line(line, number, on_line)
            except JsonLimitError as error:
                raise RunError(
                    f"{self.path}: {error}, which no line of this command has: remove it"
                ) from error
        os.ftruncate(self._file, self._end)

    def _read_line(
        self, line: bytes, number: int, on_line: Callable[[dict[str, Any], tuple[int, int]], None]
    ) -> None:
        try:
            on_line(read_json_line(line), (self._end, len(line)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RunError(
                f"{self.path}, line {number} was not written by this command ({error!r}): remove the line, "
                "and what it was about is asked again"
            ) from error
        self._end += len(line)
