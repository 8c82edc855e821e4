"""A cache of a judge's replies, in memory or in a file that outlives the run.

The file has one JSON object a line, `{"request": sha256 of the request, "reply": "correct"}`, and is only
appended to: each line in one write with O_APPEND, so that several processes can share the file. Before a
reply counts as unknown, the lines that were appended meanwhile are read. A line that cannot be read, such as
one that was cut off by a kill, is skipped; the next writer begins a new line after it, also after another's
line that is half written, which leaves an empty line. Neither texts nor keys are stored.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

from rag_r1.io.appended_files import json_line, open_to_append
from rag_r1.io.bounded_json import read_json_line
from rag_r1.rewards.registry import RewardError

logger = logging.getLogger(__name__)

#: Name of the file, if the path is that of a folder.
FILE_NAME = "judge.jsonl"
_CHUNK_BYTES = 1 << 20
_MOST_REPLY = 64


class ReplyCache:
    """Replies by the sha256 of their request, in hex. `path`: a file whose name ends in `.jsonl`, or a
    folder; None: memory only. Raises RewardError if the file cannot be opened."""

    def __init__(self, path: str | None):
        self._replies: dict[bytes, str] = {}
        self._lock = threading.Lock()
        self._file = None if path is None else _opened(path)
        self._path = path
        #: How far the file has been read, in bytes; what is between that and its end is unknown.
        self._read_to = 0
        self._has_warned = False
        if skipped := self._read_on():
            logger.warning("%s: %d lines that cannot be read are skipped", path, skipped)

    def get(self, request: str) -> str | None:
        """The reply to a request, or None if none is stored."""
        key = bytes.fromhex(request)
        with self._lock:
            if key not in self._replies:
                self._read_on()
            return self._replies.get(key)

    def put(self, request: str, reply: str) -> None:
        """Store a reply. If the disk is full it is kept in memory, and a warning is logged once."""
        with self._lock:
            self._replies[bytes.fromhex(request)] = reply
            if self._file is not None:
                line = json_line({"request": request, "reply": reply})
                self._append(line if self._ends_whole() else b"\n" + line)

    def close(self) -> None:
        """Close the file; what is in memory stays."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _append(self, data: bytes) -> None:
        try:
            if os.write(self._file, data) == len(data):
                return
            problem = "the disk is full"
        except OSError as error:
            problem = error.strerror
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s: %s; further verdicts are kept for this run only", self._path, problem)

    def _ends_whole(self) -> bool:
        """Is the file empty, or its last line complete?"""
        size = os.fstat(self._file).st_size
        return size == 0 or os.pread(self._file, 1, size - 1) == b"\n"

    def _read_on(self) -> int:
        """Read the whole lines that were appended since the last time; returns how many were useless."""
        useless = 0
        while self._file is not None and (data := os.pread(self._file, _CHUNK_BYTES, self._read_to)):
            end = data.rfind(b"\n") + 1
            if not end and len(data) < _CHUNK_BYTES:
                break  # the beginning of a line; its end may follow
            end = end or len(data)
            useless += sum(not self._take(line) for line in data[:end].split(b"\n") if line)
            self._read_to += end
        return useless

    def _take(self, line: bytes) -> bool:
        try:
            entry = read_json_line(line)
            key, reply = bytes.fromhex(entry["request"]), entry["reply"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return False
        if len(key) != 32 or not isinstance(reply, str) or len(reply) > _MOST_REPLY:
            return False
        self._replies[key] = reply
        return True


def _opened(path: str) -> int:
    place = Path(path)
    file = place if place.suffix == ".jsonl" and not place.is_dir() else place / FILE_NAME
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return open_to_append(file)
    except OSError as error:
        raise RewardError(
            f"the judge's cache {file} cannot be opened ({error.strerror}): set `cache` to a file or folder "
            "that can be written to, or to null"
        ) from error
