"""The folder of a run: it survives kills, and only one process works in it.

    OUT/settings.yaml               all arguments, for another run (rag_r1/options/settings_file.py)
    OUT/provenance.json             what the results depend on: the settings, as `settings`, of which other
                                    values are refused; the rest by rag_r1/rollouts/provenance.py
    OUT/journal/records.ndjson      a trajectory record for each episode that has ended
    OUT/journal/exchanges.ndjson    each answer of the endpoint (response_cache.py)

The journal's files are JSON lines (under a name that readers of trajectory records do not pick up: the
command writes the records, sorted and each once, to OUT itself when it ends). A line is appended in one write
before anything is built on it. A process that is killed while it writes leaves a line without an end, which
the next start removes. Lines are in the order in which things ended, so nothing may depend on that order.
Runs of earlier versions have their settings in OUT/journal/settings.json, which is still read.

Memory holds an `EpisodeOutcome` for each request and the position of its record, not the record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_r1.io.atomic_files import write_json
from rag_r1.io.secrets import without_secrets
from rag_r1.runs.errors import RunError
from rag_r1.runs.json_lines import JsonLinesFile, LinePosition
from rag_r1.runs.lock import hold_out
from rag_r1.runs.response_cache import ResponseCache
from rag_r1.runs.settings import flatten, json_roundtrip, read_marker, refuse_changes

PROVENANCE = "provenance.json"
JOURNAL = "journal"
#: Where runs of earlier versions have their settings.
_OLD_SETTINGS = "settings.json"


@dataclass(frozen=True)
class EpisodeOutcome:
    """How the last episode of a request ended. `right`: None if it was not judged, because the infrastructure
    `failed`; `tries`: how often the request was played; all tries but the last have failed."""

    id: str
    right: bool | None
    failed: bool
    tries: int
    status: str
    tool_failures: int = 0
    searches: int = 0

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> EpisodeOutcome:
        """Returns the outcome in a record of the journal. Raises KeyError or TypeError for anything else."""
        right = record["right"]
        if right not in (True, False, None):
            raise TypeError(f"`right` is {right!r}")
        return cls(
            id=str(record["id"]),
            right=right,
            failed=right is None,
            tries=int(record["try"]),
            status=str(record["status"]),
            tool_failures=sum(turn["status"] == "tool_failure" for turn in record["turns"]),
            searches=sum(len(turn["calls"]) for turn in record["turns"]),
        )

    def is_open(self, tries: int) -> bool:
        """Returns whether the next start, with so many `tries`, plays the request again: if it failed, unless
        its row cannot be played."""
        return self.failed and self.tries < tries and self.status != "bad_row"


class RunFolder:
    """A run's folder, held by this process; a context manager. `settings`: those on which the results depend,
    so no addresses. Raises RunError if the folder is in use, or was begun with other settings."""

    def __init__(self, out: Path, settings: Mapping[str, Any]):
        self.out = out
        self.journal = out / JOURNAL
        self._outcomes: dict[str, EpisodeOutcome] = {}
        self._positions: dict[str, LinePosition] = {}
        with ExitStack() as stack:
            stack.enter_context(hold_out(out, self.journal, name=None, mode=0o700))
            self._check(_without_secrets(json_roundtrip(settings)))
            self._records = JsonLinesFile(self.journal / "records.ndjson", self._index)
            stack.callback(self._records.close)
            self.cache = ResponseCache.open(self.journal)
            stack.callback(self.cache.close)
            self._opened = stack.pop_all()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files and release the folder."""
        self._opened.close()

    def outcome(self, request_id: str) -> EpisodeOutcome | None:
        """Returns how a request ended; None if it was not played to its end."""
        return self._outcomes.get(request_id)

    def write(self, record: Mapping[str, Any]) -> EpisodeOutcome:
        """Append the record of an episode: a trajectory with `right` and `try`. Raises RunError."""
        outcome = EpisodeOutcome.of(record)  # before anything is written
        self._records.append(dict(record))
        return outcome

    def record(self, request_id: str) -> dict[str, Any] | None:
        """Returns the last record of a request; None without one."""
        position = self._positions.get(request_id)
        return None if position is None else self._records.at(position)

    def records(self, request_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yields the last record of each request that has one, in this order."""
        return (record for request_id in request_ids if (record := self.record(request_id)) is not None)

    def _index(self, record: dict[str, Any], position: LinePosition) -> None:
        outcome = EpisodeOutcome.of(record)
        self._outcomes[outcome.id], self._positions[outcome.id] = outcome, position

    def _check(self, settings: dict[str, Any]) -> None:
        """Compare the settings with those of an earlier start, and write them. Raises RunError for others."""
        try:
            earlier = written = _read_marker(self.out / PROVENANCE).get("settings")
            if earlier is None and (old_settings := _read_marker(self.journal / _OLD_SETTINGS)):
                earlier = _without_secrets(old_settings["settings"])
            if earlier is not None:
                refuse_changes(self.out, flatten(earlier), flatten(settings))
        except (KeyError, TypeError, AttributeError) as error:
            raise RunError(
                f"{self.out} has no settings of a run ({error!r}): choose another --out"
            ) from error
        if written != settings:
            write_provenance(self.out, {"settings": settings})


def write_provenance(out: Path, parts: Mapping[str, Any]) -> Path:
    """Write keys of a run's `provenance.json`, and keep its others; returns its path. Raises RunError."""
    path = out / PROVENANCE
    write_json(path, {**_read_marker(path), **parts}, private=True)
    return path


def _read_marker(path: Path) -> dict[str, Any]:
    """Returns the object in a file of a run; {} without the file. Raises RunError."""
    return read_marker(path, "choose another --out")


def _without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings without their secrets, and with a hash of these."""
    public = without_secrets(settings)
    public_values = flatten(public)
    if hidden := {key: value for key, value in flatten(settings).items() if public_values.get(key) != value}:
        text = json.dumps(hidden, sort_keys=True)
        public["secrets_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    return public
