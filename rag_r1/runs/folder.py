"""The folder of a run, which survives kills and in which only one process works at a time.

    OUT/settings.yaml               all arguments, for repeating the run (rag_r1/options/settings_file.py)
    OUT/provenance.json             what the results depend on: `settings`, which must not change when the run
                                    is resumed, and the keys written by rag_r1/rollouts/provenance.py
    OUT/journal/records.ndjson      a trajectory record for each finished episode
    OUT/journal/exchanges.ndjson    each answer of the endpoint (response_cache.py)

The journal consists of JSON lines. Its files are named so that a search for trajectory records (`*.jsonl`)
does not find them: at its end the command writes the records to OUT itself, sorted and without duplicates.
Each line is appended in one write before anything relies on it. If the process is killed meanwhile, an
incomplete line remains, which the next invocation removes. Lines are in the order in which episodes ended, so
nothing may depend on their order. Runs of earlier versions have their settings in OUT/journal/settings.json,
which is still read.

Memory holds an `EpisodeOutcome` for each request and the position of its record, but not the record. Work
without episodes uses parts of this: the training of a retriever, for example, only the lock and the settings.
"""

from __future__ import annotations

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
from rag_r1.runs.settings import flatten, json_hash, json_roundtrip, read_marker, refuse_changes

PROVENANCE = "provenance.json"
JOURNAL = "journal"
#: The file in the journal that has the settings of runs of earlier versions.
_OLD_SETTINGS = "settings.json"


@dataclass(frozen=True)
class EpisodeOutcome:
    """The outcome of the last episode of a request."""

    #: The id of the request.
    id: str
    #: Whether the answer was right; None if it was not judged, because the infrastructure failed.
    right: bool | None
    #: How often the request was played. All tries before the last one failed.
    tries: int
    #: How the episode ended, as in its record.
    status: str
    #: Number of turns in which a call failed.
    tool_failures: int = 0
    #: Number of calls, including those that failed.
    searches: int = 0

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> EpisodeOutcome:
        """Return the outcome of a record in the journal. Raises one of PARSE_ERRORS (json_lines.py) for any
        other object."""
        right = record["right"]
        if right is not None and not isinstance(right, bool):
            raise TypeError(f"`right` is {right!r}")
        return cls(
            id=str(record["id"]),
            right=right,
            tries=int(record["try"]),
            status=str(record["status"]),
            tool_failures=sum(turn["status"] == "tool_failure" for turn in record["turns"]),
            searches=sum(len(turn["calls"]) for turn in record["turns"]),
        )

    @property
    def failed(self) -> bool:
        """Whether the infrastructure failed, so that there is no verdict."""
        return self.right is None

    def is_open(self, tries: int) -> bool:
        """Return whether an invocation that allows this many `tries` must play the request again: it failed,
        has tries left, and its row can be played."""
        return self.failed and self.tries < tries and self.status != "bad_row"


class RunFolder:
    """A run's folder, whose lock this process holds; a context manager.

    `settings` are the settings that determine the results, so they contain no addresses. Raises RunError if
    another process holds the lock, the run was started with other settings, or its files have other content,
    and OSError if a file cannot be opened or written.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any]):
        self.out = out
        self.journal = out / JOURNAL
        self._outcomes: dict[str, EpisodeOutcome] = {}
        self._positions: dict[str, LinePosition] = {}
        with ExitStack() as stack:
            stack.enter_context(hold_out(out, self.journal, name=None, mode=0o700))
            stored = check_settings(out, settings)
            # They differ in a new folder, in one of an earlier version, and if a setting of None was added.
            if _read_marker(out / PROVENANCE).get("settings") != stored:
                write_provenance(out, {"settings": stored})
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
        """Close the files, and release the lock."""
        self._opened.close()

    def outcome(self, request_id: str) -> EpisodeOutcome | None:
        """Return the outcome of a request; None if it was not played to its end."""
        return self._outcomes.get(request_id)

    def write(self, record: Mapping[str, Any]) -> EpisodeOutcome:
        """Append the record of an episode, its trajectory with `right` and `try`, and return its outcome.
        Raises RunError if the disk is full, and the errors of `EpisodeOutcome.of`."""
        outcome = EpisodeOutcome.of(record)  # may raise, so this is done before writing
        self._records.append(dict(record))
        return outcome

    def record(self, request_id: str) -> dict[str, Any] | None:
        """Return the last record of a request; None if there is none."""
        position = self._positions.get(request_id)
        return None if position is None else self._records.at(position)

    def records(self, request_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the last record of each request that has one, in the order of `request_ids`."""
        return (record for request_id in request_ids if (record := self.record(request_id)) is not None)

    def _index(self, record: dict[str, Any], position: LinePosition) -> None:
        """Record the outcome and the position of a record, which replace those of an earlier one. Raises the
        errors of `EpisodeOutcome.of`."""
        outcome = EpisodeOutcome.of(record)
        self._outcomes[outcome.id], self._positions[outcome.id] = outcome, position


def check_settings(out: Path, settings: Mapping[str, Any], *, is_complete: bool = True) -> dict[str, Any]:
    """Compare settings with those with which the run in this folder was begun, if there is one.

    Returns the settings in the form in which a run stores them. If they are not complete, only the given ones
    are compared; otherwise a missing setting counts as None. Raises RunError if any setting has changed,
    or if those of the run cannot be read.
    """
    current = _without_secrets(json_roundtrip(settings))
    try:
        earlier = _read_marker(out / PROVENANCE).get("settings")
        if earlier is None and (old_settings := _read_marker(out / JOURNAL / _OLD_SETTINGS)):
            earlier = _without_secrets(old_settings["settings"])
        if earlier is not None:
            compared = {key: value for key, value in earlier.items() if is_complete or key in current}
            refuse_changes(out, flatten(compared), flatten(current))
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{out} has no settings of a run ({error!r}): choose another --out") from error
    return current


def write_provenance(out: Path, parts: Mapping[str, Any]) -> Path:
    """Set keys of a run's `provenance.json` and keep all others. Returns its path. Raises RunError if it
    cannot be read, and OSError if it cannot be written."""
    path = out / PROVENANCE
    write_json(path, {**_read_marker(path), **parts}, private=True)
    return path


def _read_marker(path: Path) -> dict[str, Any]:
    """Return the object in a file of the run; {} if there is no file. Raises RunError if it cannot be
    read."""
    return read_marker(path, "choose another --out")


def _without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without their secrets, and with a hash of the secrets."""
    public = without_secrets(settings)
    public_values = flatten(public)
    if hidden := {key: value for key, value in flatten(settings).items() if public_values.get(key) != value}:
        public["secrets_sha256"] = json_hash(hidden)
    return public
