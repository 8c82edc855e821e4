"""The response cache: an interrupted episode resumes without repeating a request, and a judge is asked once.

A line is `{"ask", "turn", "sha256", "answer", "usage"}`. It is appended as soon as the answer has arrived and
before it is used. An episode that is played again looks into the cache first: an answer counts if it is of
the same episode, the same turn and the same request, to the byte. So only requests that were in flight at the
kill are sent again, and those after a search that now has other results, which are other requests. An answer
that was useless, but has to be paid for, is a line without `answer`: it is counted and never replayed.

The cache of a run belongs to its folder (folder.py). That of the reward's judge is `shared` by the processes
of a training, and by further runs; its lines in earlier versions, `{"request": sha256, "reply": text}`, are
still read. It holds neither the texts that were judged nor API keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag_r1.runs.json_lines import JsonLinesFile, LinePosition, SharedJsonLines

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
        """Returns the cost at prices per million tokens."""
        return (self.prompt_tokens * price_in + self.completion_tokens * price_out) / 1e6


@dataclass
class ResponseCache:
    """The answers of a model's server. Without `lines` nothing is kept (for tests and single questions)."""

    lines: JsonLinesFile | None = None
    #: The usage of all lines, those of earlier starts too.
    usage: Usage = field(default_factory=Usage)
    _positions: dict[bytes, LinePosition] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> ResponseCache:
        """Opens the cache in a folder, which belongs to one process. Raises RunError."""
        cache = cls()
        cache.lines = JsonLinesFile(folder / EXCHANGES, cache.index)
        return cache

    @classmethod
    def shared(cls, path: Path | None) -> ResponseCache:
        """Opens a cache that several processes may have open; None: one in memory. Raises OSError."""
        cache = cls()
        cache.lines = SharedJsonLines(path, cache.index)
        return cache

    def get(self, request_id: str, turn: int, request: bytes) -> dict[str, Any] | None:
        """Returns the answer to a request; None if the cache does not have it."""
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
        """Append an answer, None for a useless one, with its usage. On a full disk a run's cache raises
        RunError."""
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

    def index(self, line: Mapping[str, Any], position: LinePosition) -> None:
        """Remember where a line is, and count its usage. Raises KeyError, TypeError or AttributeError if it
        is not a line of a cache."""
        line = _line(line)
        if "answer" in line:
            if not isinstance(line["answer"], dict):
                raise TypeError("`answer` is not an object")
            self._positions[_key(line["ask"], line["turn"], line["sha256"])] = position
        self.usage.add(line["usage"])


def _line(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a line in the form of today; earlier versions' cache of the reward's judge had another one."""
    if "reply" not in line:
        return line
    answer = {"text": line["reply"]}
    return {"ask": "", "turn": 0, "sha256": line["request"], "answer": answer, "usage": {}}


def _sha256(request: bytes) -> str:
    return hashlib.sha256(request).hexdigest()


def _key(request_id: str, turn: int, sha256: str) -> bytes:
    """Returns a short hash that is equal for equal requests of an episode's turn."""
    text = f"{len(request_id)}/{request_id}/{turn}/{sha256}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
