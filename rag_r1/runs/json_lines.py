"""Append-only files of JSON lines, which survive a kill in the middle of a line.

A `JsonLinesFile` belongs to one process. It raises an error for a full disk and for an unreadable line,
except for a last line that was cut off, which is removed.

A `SharedJsonLines` is appended to by several processes at once, each line in a single write with O_APPEND. An
unreadable line, such as one cut off by a kill, is skipped. The next writer starts a new line after it; if
another process was writing that line just then, an empty line results. Without a file, or if the disk is
full, lines are kept in memory, and so is a line of more than _CHUNK_BYTES, which could not be read again.
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

#: Offset and length of a line in the file, or the line itself if it is kept in memory.
LinePosition = tuple[int, int] | bytes
OnLine = Callable[[dict[str, Any], LinePosition], None]
#: The errors that `on_line` and other parsers of a line raise for a line of another kind of file.
PARSE_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
#: Bytes of a shared file that are read at a time; a line of it that is longer is not read.
_CHUNK_BYTES = 1 << 20


class _OpenLines:
    """An open file of lines, or none for a `path` of None, whose lines are kept in memory. Raises OSError if
    the file cannot be opened."""

    def __init__(self, path: Path | None, on_line: OnLine):
        self.path, self._on_line = path, on_line
        self._file = None if path is None else open_to_append(path)
        #: The offset up to which the file has been read.
        self._end = 0

    def at(self, position: LinePosition) -> dict[str, Any]:
        """Return the object at a position."""
        data = position if isinstance(position, bytes) else os.pread(self._file, position[1], position[0])
        return json.loads(data.decode("utf-8", "surrogatepass"))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class JsonLinesFile(_OpenLines):
    """An append-only file with one JSON object per line.

    `on_line` is called with each object that is read or appended, and with its position. If `header` is
    given, it is the first line, and a file that begins differently is emptied. Raises RunError, which names
    the file and the line, for a line that cannot be read, and OSError if the file cannot be opened.
    """

    def __init__(self, path: Path, on_line: OnLine, header: Mapping[str, Any] | None = None):
        super().__init__(path, on_line)
        try:
            if header is not None:
                self._begin_with(json_line(header))
            self._read()
        except BaseException:
            self.close()
            raise

    def append(self, value: dict[str, Any]) -> None:
        """Append an object. If the disk is full, raises RunError and leaves no part of the line."""
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

    def _begin_with(self, header: bytes) -> None:
        """Write the header, and empty a file that has another one."""
        if os.pread(self._file, len(header), 0) != header:
            os.ftruncate(self._file, 0)
            append_whole(self._file, header, 0)
        self._end = len(header)

    def _read(self) -> None:
        """Read all lines, and remove a last line that was cut off by a kill."""
        with open(os.dup(self._file), "rb") as file:
            has_header = self._end > 0
            try:
                for number, line in enumerate(limited_lines(file), 1):
                    if number == 1 and has_header:
                        continue
                    if not line.endswith(b"\n"):
                        logger.warning("%s: line %d was cut off by a kill and is removed", self.path, number)
                        break
                    self._read_line(line, number)
            except TooLargeError as error:
                raise RunError(f"{self.path}: {error}, so it cannot be read: remove it") from error
        os.ftruncate(self._file, self._end)

    def _read_line(self, line: bytes, number: int) -> None:
        """Pass a line to `on_line`. Raises RunError, with the line number, if `on_line` does not accept
        it."""
        try:
            self._on_line(read_json_line(line), (self._end, len(line)))
        except PARSE_ERRORS as error:
            raise RunError(
                f"{self.path}, line {number} was not written by this command ({error!r}): remove the line; "
                "the command then continues as if it had not been written"
            ) from error
        self._end += len(line)


class SharedJsonLines(_OpenLines):
    """A file of JSON objects to which several processes append; with a `path` of None the lines are kept in
    memory. `on_line` is called as by JsonLinesFile. Raises OSError if the file cannot be opened."""

    def __init__(self, path: Path | None, on_line: OnLine):
        super().__init__(path, on_line)
        self._has_warned = False
        if skipped_lines := self._read():
            logger.warning("%s: %d lines that cannot be read are skipped", path, skipped_lines)

    def append(self, value: dict[str, Any]) -> None:
        """Append an object, or keep a very long one in memory. If the disk is full, keeps it in memory, too,
        and logs a warning once."""
        line = json_line(value)
        is_kept = self._file is None or len(line) > _CHUNK_BYTES
        if not is_kept and self._is_written(line if self._ends_whole() else b"\n" + line):
            self._read()  # also reads the lines of other processes before it, which gives its position
        else:
            self._on_line(value, line)

    def read_on(self) -> None:
        """Read what other processes have appended."""
        self._read()

    def _is_written(self, data: bytes) -> bool:
        """Write bytes to the end of the file. Returns whether all were written; if not, logs a warning
        once."""
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
        """Return whether the file is empty or its last line is complete."""
        size = os.fstat(self._file).st_size
        return size == 0 or os.pread(self._file, 1, size - 1) == b"\n"

    def _read(self) -> int:
        """Read the complete lines that were appended since the last call. Returns how many were skipped."""
        skipped_lines = 0
        while self._file is not None and (data := os.pread(self._file, _CHUNK_BYTES, self._end)):
            end = data.rfind(b"\n") + 1
            if not end and len(data) < _CHUNK_BYTES:
                break  # an incomplete line, whose end may still follow
            for line in data[: end or len(data)].splitlines(keepends=True):
                skipped_lines += not self._accepts(line)
                self._end += len(line)
        return skipped_lines

    def _accepts(self, line: bytes) -> bool:
        """Pass a line to `on_line`, unless it is empty. Returns whether it could be read."""
        try:
            if line != b"\n":
                self._on_line(read_json_line(line), (self._end, len(line)))
            return True
        except PARSE_ERRORS:
            return False
