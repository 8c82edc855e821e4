"""Compares the settings with which work was begun with the current ones, and refuses to mix them.

A run's folder (folder.py), a pipeline's step (steps.py) and a `StateFile` (state_file.py) write the settings
on which their results depend, as JSON, before anything else. A later start compares its own with these, key
by key, so a refusal names each setting that was changed. Both sides must have the same form: pass them
through `json_roundtrip`, or a tuple differs from the list that it has become; and nested settings through
`flatten`, or a whole section is named for one of its keys.

A setting is changed if its values are not equal. None and a missing key are equal: an option that a new
version adds, and that is not set, does not make it refuse the runs of earlier versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_r1.io.atomic_files import reason_of
from rag_r1.io.bounded_json import read_json_object
from rag_r1.runs.errors import RunError


def read_marker(path: Path, remedy: str) -> dict[str, Any]:
    """Returns the JSON object of a marker, a file about the work that was begun or done in a folder; {}
    without the file. Raises RunError, with the remedy."""
    if not path.exists():
        return {}
    try:
        return read_json_object(path)
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({reason_of(error)}): {remedy}") from error


def json_roundtrip(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings as they come back from JSON; values that JSON cannot hold, such as paths, are
    texts."""
    return json.loads(json.dumps(dict(settings), default=str))


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested settings by their full key, as in `budget.max_turns`. An empty mapping stays a value."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            values |= flatten(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = value
    return values


def changed_settings(before: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the keys whose values differ, with both values."""
    pairs = {key: (before.get(key), current.get(key)) for key in dict.fromkeys([*before, *current])}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def refuse_changes(
    subject: object,
    before: Mapping[str, Any],
    current: Mapping[str, Any],
    remedy: str = "Give the same ones to go on, or choose another --out",
) -> None:
    """Raises RunError, with both values of each changed setting and the remedy, if `subject` (a folder, or
    the option that names it) was begun with other settings."""
    if changed := changed_settings(before, current):
        changes = "; ".join(f"{key} was {old!r} and is now {new!r}" for key, (old, new) in changed.items())
        raise RunError(f"{subject} was begun with other settings: {changes}. {remedy}")
