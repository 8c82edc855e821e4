"""Files of JSON lines that are only appended to; a kill in the middle of a line does no harm.

A `JsonLinesFile` belongs to one process: a line that cannot be read is refused, and so is a full disk. A
`SharedJsonLines` is appended to by several at the same time, each line in one write with O_APPEND. There, a
line that cannot be read, such as one that was cut off by a kill, is skipped. The next writer begins a new
line after it; if another process was just writing that line, this leaves an empty one. Without a file, or if
the disk is full, the lines are kept in memory.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rag_r1.io.appended_files import append_whole, json_line, open_to_append
from rag_r1.io.bounded_json import limited_lines, read_json_line
from rag_r1.io.errors import TooLargeError
from rag_r1.runs.errors import RunError

logger = logging.getLogger(__name__)

#: Offset and length of a line in the file, or the line itself if it is in memory.
LinePosition = tuple[int, int] | bytes
OnLine = Callable[[dict[str, Any], LinePosition], None]
#: What `on_line` raises for a line of something else.
_PARSE_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_CHUNK_BYTES = 1 << 20


class JsonLinesFile:
    """A file of JSON objects, one a line, that is only appended to. `on_line` is called with each object that
    is in the file or is appended, and its position. `header`: the first line; a file with another one is
    emptied. Raises RunError, which names file and line."""

    def __init__(self, path: Path, on_line: OnLine, header: Mapping[str, Any] | None = None):
        self.path, self._on_line = path, on_line
        self._file = open_to_append(path)
        self._end = 0
        try:
            if header is not None:
                self._begin_with(json_line(header))
            self._read()
        except BaseException:
            self.close()
            raise

    def append(self, value: dict[str, Any]) -> None:
        """Append an object. On a full disk RunError is raised, and no part of the line stays."""
        data = json_line(value)
        try:
            append_whole(self._file, data, self._end)
        except OSError as error:
            raise RunError(
                f"cannot write to {self.path}: {error.strerror}. What was written is kept; make room and run "
                "the same command again"
            ) from error
        self._end += len(data)
        self._on_line(value, (self._end - len(data), len(data)))

    def at(self, position: LinePosition) -> dict[str, Any]:
        """Returns the object at a position."""
        data = position if isinstance(position, bytes) else os.pread(self._file, position[1], position[0])
        return json.loads(data.decode("utf-8", "surrogatepass"))

    def read_on(self) -> None:
        """Read what other processes have appended. Nobody else appends to this file, so it does nothing."""

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _begin_with(self, header: bytes) -> None:
        """Empty a file that has another header, and write this one."""
        if os.pread(self._file, len(header), 0) != header:
            os.ftruncate(self._file, 0)
            append_whole(self._file, header, 0)
        self._end = len(header)

    def _read(self) -> None:
        """Read all lines, and remove one that a kill has cut off."""
        with open(os.dup(self._file), "rb") as file:
            file.seek(self._end)
            try:
                for number, line in enumerate(limited_lines(file), 2 if self._end else 1):
                    if not line.endswith(b"\n"):
                        logger.warning("%s: line %d was cut off by a kill and is removed", self.path, number)
                        break
                    self._read_line(line, number)
            except TooLargeError as error:
                raise RunError(
                    f"{self.path}: {error}, but this command writes no such line: remove it"
                ) from error
        os.ftruncate(self._file, self._end)

    def _read_line(self, line: bytes, number: int) -> None:
        """Pass a line on. Raises RunError, with its number, if it was not written by this command."""
        try:
            self._on_line(read_json_line(line), (self._end, len(line)))
        except _PARSE_ERRORS as error:
            raise RunError(
                f"{self.path}, line {number} was not written by this command ({error!r}): remove the line; "
                "its request is then sent again"
            ) from error
        self._end += len(line)


class SharedJsonLines(JsonLinesFile):
    """A file of JSON objects to which several processes append. `path`: None to keep the lines in memory.
    Raises OSError."""

    def __init__(self, path: Path | None, on_line: OnLine):
        self.path, self._on_line = path, on_line
        self._file = None if path is None else open_to_append(path)
        #: How far the file has been read; the lines after that are other processes'.
        self._end = 0
        self._has_warned = False
        if skipped_lines := self._read():
            logger.warning("%s: %d lines that cannot be read are skipped", path, skipped_lines)

    def append(self, value: dict[str, Any]) -> None:
        """Append an object. If the disk is full it is kept in memory, and a warning is logged once."""
        line = json_line(value)
        if self._file is not None and self._is_written(line if self._ends_whole() else b"\n" + line):
            self._read()  # with the lines of others before it, so its position is known
        else:
            self._on_line(value, line)

    def read_on(self) -> None:
        """Read what other processes have appended."""
        self._read()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _is_written(self, data: bytes) -> bool:
        """Write bytes to the end of the file; returns whether all were written, and warns once if not."""
        try:
            if os.write(self._file, data) == len(data):
                return True
            problem = "the disk is full"
        except OSError as error:
            problem = error.strerror
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s: %s; further lines are kept for this run only", self.path, problem)
        return False

    def _ends_whole(self) -> bool:
        """Returns whether the file is empty or its last line complete."""
        size = os.fstat(self._file).st_size
        return size == 0 or os.pread(self._file, 1, size - 1) == b"\n"

    def _read(self) -> int:
        """Read the whole lines that were appended since the last time; returns how many were skipped."""
        skipped_lines = 0
        while self._file is not None and (data := os.pread(self._file, _CHUNK_BYTES, self._end)):
            end = data.rfind(b"\n") + 1
            if not end and len(data) < _CHUNK_BYTES:
                break  # the beginning of a line; its end may follow
            for line in data[: end or len(data)].splitlines(keepends=True):
                skipped_lines += not self._accepts(line)
                self._end += len(line)
        return skipped_lines

    def _accepts(self, line: bytes) -> bool:
        """Pass a line on; returns whether it could be read. An empty line is accepted and not passed on."""
        try:
            if line != b"\n":
                self._on_line(read_json_line(line), (self._end, len(line)))
            return True
        except _PARSE_ERRORS:
            return False
