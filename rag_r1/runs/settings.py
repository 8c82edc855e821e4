"""Compares the current settings of resumed work with those it was started with, and refuses changes.

A run's folder (folder.py), a pipeline's step (steps.py) and a `StateFile` (state_file.py) store the settings
that determine their results as JSON before anything else. A later invocation compares its own settings with
these, key by key, so that a refusal names every changed setting. Both sides must have the same form. They are
therefore passed through `json_roundtrip`, since a tuple would differ from the list that it became, and nested
settings through `flatten`, so that single keys are named instead of whole sections. `json_hash` is for values
of which it is enough to know that they have changed.

A setting has changed if its values are not equal. None and a missing key count as equal: an option that a new
version adds and that is not set must not make it refuse the runs of earlier versions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_r1.io.bounded_json import read_json_object
from rag_r1.io.errors import reason_of
from rag_r1.runs.errors import RunError


def read_marker(path: Path, remedy: str) -> dict[str, Any]:
    """Return the JSON object in a marker file, which describes the work that was started or done in a
    folder; {} if there is no file. Raises RunError, with the remedy, if it cannot be read."""
    try:
        return read_json_object(path) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({reason_of(error)}): {remedy}") from error


def json_roundtrip(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they are after writing and reading them as JSON. Values that JSON cannot represent,
    such as paths, become texts."""
    return json.loads(json.dumps(dict(settings), default=str))


def json_hash(value: Any) -> str:
    """Return the SHA-256 hash, in hexadecimal, of the JSON of a value with sorted keys. Values that JSON
    cannot represent count as texts."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their full keys, such as `budget.max_turns`. An empty mapping remains a
    value."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            values |= flatten(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = value
    return values


def changed_settings(before: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the keys whose values differ, each with its old and new value."""
    pairs = {key: (before.get(key), current.get(key)) for key in dict.fromkeys([*before, *current])}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def refuse_changes(
    subject: object,
    before: Mapping[str, Any],
    current: Mapping[str, Any],
    remedy: str = "Give the same ones to go on, or choose another --out",
) -> None:
    """Raise RunError if settings have changed since the work in `subject` was started. `subject` is a
    folder, or the option that names it. The message has both values of each changed setting, and the
    remedy."""
    if changed := changed_settings(before, current):
        changes = "; ".join(f"{key} was {old!r} and is now {new!r}" for key, (old, new) in changed.items())
        raise RunError(f"{subject} was begun with other settings: {changes}. {remedy}")
