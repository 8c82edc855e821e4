"""Reads the config.json of a local model, for checks that need its sizes and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rag_r1.io.bounded_json import read_json_object


def read_model_config(folder: Path) -> dict[str, Any]:
    """Return the values in a local model's config.json by key, with those in its `text_config` where it has
    none or a null. Raises OSError or ValueError if the file cannot be used."""
    config = read_json_object(folder / "config.json")
    text_config = config.get("text_config") or {}
    if not isinstance(text_config, dict):
        raise ValueError("text_config is not a JSON object")
    return {**config, **{key: value for key, value in text_config.items() if config.get(key) is None}}


def model_config(folder: Path) -> dict[str, Any]:
    """Return the values of `read_model_config`; {} where that raises an error."""
    try:
        return read_model_config(folder)
    except (OSError, ValueError):
        return {}
