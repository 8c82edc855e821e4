"""The response cache: an interrupted episode resumes without repeating a request, and a judge is asked once.

A line is `{"ask", "turn", "sha256", "answer", "usage"}`. It is appended as soon as the answer has arrived and
before it is used. An episode that is played again asks the cache first: an answer counts if it is of the same
episode, the same turn and the same request, to the byte. So only requests that were in flight at the kill are
sent again; those after a search that now finds something else are other requests. An answer that was
useless, but has to be paid for, is a line without `answer`: it is counted and never replayed.

The cache of a run belongs to its folder (folder.py). That of the reward's judge is `shared` by the processes
of a training, and by further runs; its lines in earlier versions, `{"request": sha256, "reply": text}`, are
still read. It has neither the texts that were judged nor keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag_r1.runs.json_lines import JsonLinesFile, Place, SharedJsonLines

#: The cache of a run, in its journal.
EXCHANGES = "exchanges.ndjson"


@dataclass
class Usage:
    """Requests that were answered, and their tokens as the endpoint counts them."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    #: Requests for which the endpoint named no tokens; theirs are estimated from the texts' lengths.
    estimated: int = 0

    def add(self, other: Usage | Mapping[str, int]) -> None:
        """Count another usage in."""
        values = vars(other) if isinstance(other, Usage) else other
        for name in vars(self):
            setattr(self, name, getattr(self, name) + int(values.get(name, 0)))

    def cost(self, price_in: float, price_out: float) -> float:
        """At prices per million tokens."""
        return (self.prompt_tokens * price_in + self.completion_tokens * price_out) / 1e6


@dataclass
class ResponseCache:
    """See the top of the module. Without `lines` nothing is kept (for tests and single questions)."""

    lines: JsonLinesFile | None = None
    #: Of all lines, those of earlier starts too.
    usage: Usage = field(default_factory=Usage)
    _positions: dict[bytes, Place] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> ResponseCache:
        """The cache in a folder, which belongs to one process. Raises RunError."""
        cache = cls()
        cache.lines = JsonLinesFile(folder / EXCHANGES, cache.index)
        return cache

    @classmethod
    def shared(cls, path: Path | None) -> ResponseCache:
        """A cache that several processes may have open; None: in memory. Raises OSError."""
        cache = cls()
        cache.lines = SharedJsonLines(path, cache.index)
        return cache

    def get(self, request_id: str, turn: int, request: bytes) -> dict[str, Any] | None:
        """The answer to a request, or None."""
        if self.lines is None:
            return None
        key = _key(request_id, turn, _sha256(request))
        if key not in self._positions:
            self.lines.read_on()
        position = self._positions.get(key)
        return None if position is None else _line(self.lines.at(position))

    def put(
        self, request_id: str, turn: int, request: bytes, answer: Mapping[str, Any] | None, usage: Usage
    ) -> None:
        """Append an answer; None for a useless one. On a full disk a run's cache raises RunError."""
        line = {"ask": request_id, "turn": turn, "sha256": _sha256(request), "usage": vars(usage)}
        if answer is not None:
            line["answer"] = dict(answer)
        if self.lines is not None:
            self.lines.append(line)
        else:
            self.usage.add(usage)

    def close(self) -> None:
        """Close its file."""
        if self.lines is not None:
            self.lines.close()

    def index(self, line: Mapping[str, Any], position: Place) -> None:
        """Index a line. Raises KeyError, TypeError or AttributeError if it is no line of a cache."""
        line = _line(line)
        if "answer" in line:
            if not isinstance(line["answer"], dict):
                raise TypeError("`answer` is no object")
            self._positions[_key(line["ask"], line["turn"], line["sha256"])] = position
        self.usage.add(line["usage"])


def _line(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """A line, also of an earlier version's cache of the reward's judge."""
    if "reply" not in line:
        return line
    answer = {"text": line["reply"]}
    return {"ask": "", "turn": 0, "sha256": line["request"], "answer": answer, "usage": {}}


def _sha256(request: bytes) -> str:
    return hashlib.sha256(request).hexdigest()


def _key(request_id: str, turn: int, sha256: str) -> bytes:
    text = f"{len(request_id)}/{request_id}/{turn}/{sha256}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
