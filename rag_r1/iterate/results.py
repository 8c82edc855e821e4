"""Reads the metrics and the usage of a finished step from its files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from rag_r1.io.bounded_json import read_json_file
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import JOURNAL
from rag_r1.runs.response_cache import EXCHANGES, ResponseCache, Usage

#: Name of a figure of ours -> its name in report.json.
FIGURES = {"em": "em", "f1": "f1", "searches": "queries", "recall": "recall"}
_USAGE_KEYS = ("requests", "prompt_tokens", "completion_tokens")


def evaluation_facts(folder: Path) -> dict[str, Any]:
    """Of `rag-r1 eval` in `folder`/run: each figure's mean over the sources with its interval (`value`,
    `low`, `high`; null if it is not known), and the usage. Raises RunError."""
    report = _read(folder / "run" / "report.json")
    try:
        figures = {
            name: {end: report["figures"][column]["mean"][end] for end in ("value", "low", "high")}
            for name, column in FIGURES.items()
        }
        counted = report["counts"]["all"]
        counts = {name: counted[name] for name in ("questions", "episodes", "failed")}
    except (KeyError, TypeError) as error:
        raise _unreadable(folder / "run" / "report.json", error) from error
    return {**figures, **counts, "usage": _journal_usage(folder / "run")}


def data_facts(folder: Path) -> dict[str, Any]:
    """Of `rag-r1 retriever data` in `folder`/run: searches, rows, and the usage of its three steps. Raises
    RunError."""
    summary = _read(folder / "run" / "summary.json")
    used = Usage()
    try:
        for step in ("trajectories", "correctness", "relevance"):
            used.add(summary.get(step, {}).get("usage", {}))
        searches, rows = summary["candidates"]["searches"], summary["selection"]["rows"]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _unreadable(folder / "run" / "summary.json", error) from error
    return {"searches": searches, "rows": rows, "usage": _usage_dict(used)}


def _journal_usage(run: Path) -> dict[str, int]:
    """What the answers have used that are in the journals of an evaluation: the policy's and a judge's."""
    used = Usage()
    try:
        for folder in (run / JOURNAL, run / "judge"):
            if (folder / EXCHANGES).is_file():
                with closing(ResponseCache.open(folder)) as cache:
                    used.add(cache.usage)
    except OSError as error:
        raise RunError(str(error)) from error
    return _usage_dict(used)


def _usage_dict(used: Usage) -> dict[str, int]:
    return {name: getattr(used, name) for name in _USAGE_KEYS}


def _read(path: Path) -> Mapping[str, Any]:
    try:
        value = read_json_file(path)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        return value
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> RunError:
    return RunError(f"{path} cannot be read ({error!r}): remove its step's folder to make it again")
