"""Records the answers of web engines, and replays them byte for byte and free of charge.

A recording is a JSONL file with one answer per line, which is appended in one write as soon as it arrives:

    {"engine": "serper", "query": "...", "depth": 10, "params": {}, "documents": [{"url", "contents"}, ...]}

The first four fields are the key, which occurs only once in a file. The documents are those that the clients
got, not the engine's JSON, so that a later version with another parser does not change an old run. A line
that was cut off when the process was killed has no line end; it is ignored, and removed when recording
continues. Memory holds a hash and an offset for each answer. Only one process at a time can record into a
file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from filelock import lock_descriptor

from retrieval_server.errors import UserError, reason_of, refuse_special_file
from retrieval_server.json_limits import read_json_line
from retrieval_server.web.engines import WebDocument

log = logging.getLogger(__name__)
MAX_LINE_BYTES = 16 * 2**20  # of one recorded answer
#: The errors that parsing raises for a line that is not a recorded answer.
_BROKEN = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class RecordingKey:
    """The request to which an answer belongs. It does not contain the API key."""

    engine: str
    query: str
    depth: int
    params: Mapping[str, Any] = field(default_factory=dict)

    def digest(self) -> bytes:
        """Return a hash of all fields."""
        text = json.dumps(asdict(self), sort_keys=True, ensure_ascii=True)
        return hashlib.blake2b(text.encode("ascii"), digest_size=16).digest()


class _LineLocation(NamedTuple):
    """Where a recorded answer is."""

    descriptor: int
    #: In bytes.
    offset: int
    length: int


class Recording:
    """Answers from the files `replay` and `record`, and appends new answers to `record`. It is thread-safe.

    `replay` must exist. `record` may have answers only if it is the same file as `replay`, so that an old run
    is not mixed into a new one by mistake. Raises UserError if a file cannot be used.
    """

    def __init__(self, replay: Path | None = None, record: Path | None = None):
        self._lock = threading.Lock()
        #: Digest of a key -> the line with its answer.
        self._lines: dict[bytes, _LineLocation] = {}
        #: Descriptor of each open file -> its path.
        self._paths: dict[int, Path] = {}
        #: The descriptor of the file for new answers, and the offset of its end.
        self._record: int | None = None
        self._end = 0
        is_same = replay is not None and record is not None and _is_same_file(replay, record)
        try:
            if replay is not None and not is_same:
                self._read_lines(self._open(replay, os.O_RDONLY), repair=False)
            if record is not None:
                self._start_recording(record, append=is_same)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, key: RecordingKey) -> list[WebDocument] | None:
        """Return the recorded answer, or None.

        Raises UserError if there is no answer any more in its place in the file, and OSError if the disk
        fails.
        """
        location = self._lines.get(key.digest())
        if location is None:
            return None
        try:
            row = _parse(os.pread(location.descriptor, location.length, location.offset))
        except _BROKEN as error:
            path = self._paths[location.descriptor]
            raise UserError(f"{path}: was changed since it was opened ({error!r}). Start anew.") from None
        return [WebDocument(**document) for document in row["documents"]]

    def put(self, key: RecordingKey, documents: Sequence[WebDocument]) -> list[WebDocument]:
        """Record an answer, if there is a file for it, and return the first recorded answer for its key.

        Raises UserError if the file cannot be written; a partly written line is then removed. Also raises
        errors as `get` does.
        """
        if self._record is None:
            return list(documents)
        row = {**asdict(key), "documents": [asdict(document) for document in documents]}
        # A parameter may have half a surrogate pair, which is written as the escape that JSON has for it.
        line = json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        with self._lock:
            if (results := self.get(key)) is not None:
                return results
            try:
                if os.write(self._record, line) != len(line):
                    raise OSError("the disk is full")
            except OSError as error:
                os.ftruncate(self._record, self._end)
                path = self._paths[self._record]
                reason = error.strerror or error
                raise UserError(f"{path}: cannot record ({reason}). Free its disk.") from None
            self._lines[key.digest()] = _LineLocation(self._record, self._end, len(line))
            self._end += len(line)
        return list(documents)

    def close(self) -> None:
        """Close the files. After that there are no answers, and none is recorded."""
        for descriptor in self._paths:
            os.close(descriptor)
        self._lines, self._paths, self._record = {}, {}, None

    def _open(self, path: Path, flags: int) -> int:
        """Open a file and return its descriptor. Raises UserError for a pipe, or if it cannot be opened."""
        try:
            refuse_special_file(path)  # its lines are read by their offsets
            descriptor = os.open(path, flags, 0o600)  # only for the owner, since queries are private
        except OSError as error:
            hint = "" if flags & os.O_CREAT else " Record it first, with --record FILE."
            raise UserError(f"{path}: cannot be opened ({error.strerror}).{hint}") from None
        self._paths[descriptor] = path
        return descriptor

    def _start_recording(self, path: Path, append: bool) -> None:
        """Open and lock the file. Raises UserError if it already has answers, unless `append` is true."""
        descriptor = self._open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            is_locked = lock_descriptor(descriptor, blocking=False)
        except OSError as error:
            raise UserError(f"{path}: cannot be locked ({error.strerror}). Name another file.") from None
        if not is_locked:
            raise UserError(f"{path}: another server is recording into it. Give each its own file.")
        if not append and os.fstat(descriptor).st_size:
            raise UserError(f"{path}: exists. To go on with it, add --replay {path}; else name a new file.")
        self._end = self._read_lines(descriptor, repair=True)
        self._record = descriptor

    def _read_lines(self, descriptor: int, repair: bool) -> int:
        """Index the complete lines and return the offset of their end, at which `repair` cuts the file."""
        path = self._paths[descriptor]
        end = 0
        with open(os.dup(descriptor), "rb") as stream:
            stream.seek(0)
            for number, line in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES + 1), b""), 1):
                location = f"{path}: line {number}"
                if len(line) > MAX_LINE_BYTES:
                    raise UserError(f"{location} is longer than {MAX_LINE_BYTES} bytes. Remove it.")
                if not line.endswith(b"\n"):
                    log.warning("%s was cut off by a kill and is left out", location)
                    break
                try:
                    row = _parse(line)
                    fields = {name: value for name, value in row.items() if name != "documents"}
                    digest = RecordingKey(**fields).digest()  # fails for parameters nested too deeply
                except _BROKEN as error:
                    reason = reason_of(error)
                    raise UserError(f"{location} is not a recorded answer ({reason}). Remove it.") from None
                self._lines.setdefault(digest, _LineLocation(descriptor, end, len(line)))
                end += len(line)
        if repair:
            os.ftruncate(descriptor, end)
        return end


def _is_same_file(first: Path, second: Path) -> bool:
    """Return whether two paths name the same file, which need not exist."""
    try:
        return first.samefile(second)
    except OSError:  # opening them names any other fault than that one is missing
        return first.resolve() == second.resolve()


def _parse(line: bytes) -> dict[str, Any]:
    """Return the row of a line. Raises one of _BROKEN if the line is not a recorded answer."""
    row = read_json_line(line)
    for document in row["documents"]:
        if set(document) != {"url", "contents"} or not all(isinstance(v, str) for v in document.values()):
            raise ValueError("documents must be objects of url and contents")
        for text in document.values():
            text.encode("utf-8")  # fails for half a surrogate pair, which could not be sent
    return row
