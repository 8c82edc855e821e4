"""Compares the settings with which work was begun with those of now, and refuses to mix them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_r1.io.bounded_json import read_json_file
from rag_r1.runs.errors import RunError


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object in a file; {} if there is no such file. Raises RunError, with the remedy."""
    if not path.exists():
        return {}
    try:
        content = read_json_file(path)
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        return content
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read ({error}): {remedy}") from error


def json_roundtrip(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they come back from JSON."""
    return json.loads(json.dumps(dict(settings), default=str))


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their full key, as in `budget.max_turns`."""
    values: dict[str, Any] = {}
    for key, item in settings.items():
        nested = isinstance(item, Mapping) and item
        values |= flat(item, f"{prefix}{key}.") if nested else {f"{prefix}{key}": item}
    return values


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The keys whose values differ, with both values. None and a missing key are the same."""
    pairs = {key: (before.get(key), now.get(key)) for key in dict.fromkeys([*before, *now])}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def refuse_changes(
    where: object,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    remedy: str = "Give the same ones to go on, or choose another --out",
) -> None:
    """Raises RunError, with both values of each changed setting and the remedy, if `where` (a folder, or the
    option that names it) was begun with other settings."""
    if changed := changed_settings(before, now):
        changes = "; ".join(f"{key} was {was!r} and is now {new!r}" for key, (was, new) in changed.items())
        raise RunError(f"{where} was begun with other settings: {changes}. {remedy}")
