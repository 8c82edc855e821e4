"""Reads the config.json of a local model, for checks that need its sizes and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rag_r1.io.bounded_json import read_json_file


def read_model_config(folder: Path) -> dict[str, Any]:
    """Return the values in a local model's config.json by key, with those in its `text_config` as defaults.
    Raises OSError, ValueError, AttributeError or TypeError if the file cannot be used."""
    config = read_json_file(folder / "config.json")
    return {**(config.get("text_config") or {}), **config}


def model_config(folder: Path) -> dict[str, Any]:
    """Return the values as `read_model_config` does, or {} if the file cannot be read."""
    try:
        return read_model_config(folder)
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
