"""Caches the responses of model servers, so that an interrupted run resumes without repeating a request.

A line of the cache is `{"ask", "turn", "sha256", "answer", "usage"}`. It is appended as soon as the answer
has arrived, before the answer is used. An episode that is played again looks into the cache first, and uses
an answer if episode, turn and request are the same, byte by byte. So only three kinds of requests are sent
again: those that were in flight at the kill, those that follow a search whose results have changed, and those
whose answer was malformed. A malformed answer that has to be paid for is stored as a line without `answer`,
so that its usage is counted.

The cache of a run belongs to the run's folder (folder.py). The cache of the reward's judge is `shared` by the
processes of a training and by later runs, so that an answer is not judged twice, unless two processes ask
about it at the same time. In earlier versions its lines were `{"request": sha256, "reply": text}`, which is
still read. It contains neither the judged texts nor API keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag_r1.runs.json_lines import JsonLinesFile, LinePosition, SharedJsonLines

#: The name of a run's cache in its journal.
EXCHANGES = "exchanges.ndjson"


@dataclass
class Usage:
    """The number of answered requests, and of their tokens as the endpoint counts them."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    #: Number of requests whose tokens the endpoint did not report, so that they were estimated from lengths.
    estimated: int = 0

    def add(self, other: Usage | Mapping[str, int]) -> None:
        """Add another usage."""
        values = vars(other) if isinstance(other, Usage) else other
        for name in vars(self):
            setattr(self, name, getattr(self, name) + int(values.get(name, 0)))

    def cost(self, price_in: float, price_out: float) -> float:
        """Return the cost at these prices per million tokens."""
        return (self.prompt_tokens * price_in + self.completion_tokens * price_out) / 1e6


@dataclass
class ResponseCache:
    """The cached answers of a model server. Without `lines` nothing is stored (for tests and single
    questions)."""

    lines: JsonLinesFile | SharedJsonLines | None = None
    #: The usage of all lines, including those of earlier invocations.
    usage: Usage = field(default_factory=Usage)
    _positions: dict[bytes, LinePosition] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> ResponseCache:
        """Open the cache in a folder, for this process only. Raises RunError for a line that cannot be read,
        and OSError if the file cannot be opened."""
        cache = cls()
        cache.lines = JsonLinesFile(folder / EXCHANGES, cache.index)
        return cache

    @classmethod
    def shared(cls, path: Path | None) -> ResponseCache:
        """Open a cache that several processes may use at the same time; None for one in memory. Raises
        OSError if the file cannot be opened."""
        cache = cls()
        cache.lines = SharedJsonLines(path, cache.index)
        return cache

    def get(self, request_id: str, turn: int, request: bytes) -> dict[str, Any] | None:
        """Return the line with the `answer` to a request; None if it is not in the cache."""
        if self.lines is None:
            return None
        key = _key(request_id, turn, _sha256(request))
        if key not in self._positions and isinstance(self.lines, SharedJsonLines):
            self.lines.read_on()
        position = self._positions.get(key)
        return None if position is None else _line(self.lines.at(position))

    def put(
        self, request_id: str, turn: int, request: bytes, answer: Mapping[str, Any] | None, usage: Usage
    ) -> None:
        """Append an answer with its usage; `answer` is None for a malformed one. Raises RunError if the disk
        is full and the cache is not shared."""
        line = {"ask": request_id, "turn": turn, "sha256": _sha256(request), "usage": vars(usage)}
        if answer is not None:
            line["answer"] = dict(answer)
        if self.lines is not None:
            self.lines.append(line)
        else:
            self.usage.add(usage)

    def close(self) -> None:
        """Close the file."""
        if self.lines is not None:
            self.lines.close()

    def index(self, line: Mapping[str, Any], position: LinePosition) -> None:
        """Record the position of a line, and count its usage. Raises one of PARSE_ERRORS (json_lines.py) if
        the line does not belong to a cache."""
        line = _line(line)
        if not isinstance(line.get("answer", {}), dict):
            raise TypeError("`answer` is not an object")
        key = _key(line["ask"], line["turn"], line["sha256"]) if "answer" in line else None
        self.usage.add(line["usage"])
        if key is not None:  # last, since no answer may be taken from a line that was refused
            self._positions[key] = position


def _line(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a line in the current format, also if an earlier version wrote it to the cache of the reward's
    judge."""
    if "reply" not in line:
        return line
    answer = {"text": line["reply"]}
    return {"ask": "", "turn": 0, "sha256": line["request"], "answer": answer, "usage": {}}


def _sha256(request: bytes) -> str:
    """Return the hash of a request, in hexadecimal."""
    return hashlib.sha256(request).hexdigest()


def _key(request_id: str, turn: int, sha256: str) -> bytes:
    """Return a short key, which is the same for equal requests of the same episode and turn."""
    text = f"{len(request_id)}/{request_id}/{turn}/{sha256}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
