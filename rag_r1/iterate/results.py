"""Reads the metrics and the usage of a finished step from the files that its command left in STEP/run.

    report.json        of `rag-r1 eval`: figures, each with its mean and interval, and counts of questions
    journal/, judge/   of `rag-r1 eval`: its requests to the policy and to a judge, with their usage
    summary.json       of `rag-r1 retriever data`: counts of searches and rows, and the usage of its steps

Usage is requests and their tokens, as an endpoint counts them. A step's row in the table of the rounds
(table.py) is what is read here.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from rag_r1.evaluation.judge import JUDGE_FOLDER
from rag_r1.io.bounded_json import read_json_object
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import JOURNAL
from rag_r1.runs.response_cache import EXCHANGES, ResponseCache, Usage

#: Name of a metric here -> its name in report.json.
METRICS = {"em": "em", "f1": "f1", "searches": "queries", "recall": "recall"}
_USAGE_KEYS = ("requests", "prompt_tokens", "completion_tokens")


def evaluation_metrics(step: Path) -> dict[str, Any]:
    """Of `rag-r1 eval`: each metric's mean over the sources with its interval (`value`, `low`, `high`; null
    if it is not known), the counts of questions, episodes and failures, and `usage`. Raises RunError."""
    path = step / "run" / "report.json"
    report = _read(path)
    try:
        metrics = {
            name: {end: report["figures"][column]["mean"][end] for end in ("value", "low", "high")}
            for name, column in METRICS.items()
        }
        all_counts = report["counts"]["all"]
        counts = {name: all_counts[name] for name in ("questions", "episodes", "failed")}
    except (KeyError, TypeError) as error:
        raise _unreadable(path, error) from error
    return {**metrics, **counts, "usage": _evaluation_usage(path.parent)}


def data_metrics(step: Path) -> dict[str, Any]:
    """Of `rag-r1 retriever data`: the numbers of searches and of training rows, and `usage`. Raises
    RunError."""
    path = step / "run" / "summary.json"
    summary = _read(path)
    usage = Usage()
    try:
        usage.add(summary["trajectories"]["usage"])
        for scores in ("correctness", "relevance"):  # the options tell which are made, and which by a model
            usage.add(summary.get(scores, {}).get("usage", {}))
        searches, rows = summary["candidates"]["searches"], summary["selection"]["rows"]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _unreadable(path, error) from error
    return {"searches": searches, "rows": rows, "usage": _usage_dict(usage)}


def _evaluation_usage(run: Path) -> dict[str, int]:
    """The usage of the policy's requests and of the judge's, if there is one, over all starts of the run."""
    usage = Usage()
    try:
        for folder in (run / JOURNAL, run / JUDGE_FOLDER):
            if (folder / EXCHANGES).is_file():  # opened as by its own run, and nothing is appended
                with closing(ResponseCache.open(folder)) as cache:
                    usage.add(cache.usage)
    except OSError as error:
        raise RunError(str(error)) from error
    return _usage_dict(usage)


def _usage_dict(usage: Usage) -> dict[str, int]:
    return {name: getattr(usage, name) for name in _USAGE_KEYS}


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> RunError:
    return RunError(f"{path} cannot be read ({error!r}): remove its step's folder to make it again")
