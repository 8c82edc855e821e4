"""Reads the config.json of a local model, for checks that need its sizes and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rag_r1.io.bounded_json import read_json_file


def model_config(folder: Path) -> dict[str, Any]:
    """Return the keys of a local model's config.json, including those of its `text_config`; {} if it cannot
    be read."""
    try:
        keys = read_json_file(folder / "config.json")
        return {**(keys.get("text_config") or {}), **keys}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
