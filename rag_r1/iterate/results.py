"""Reads the metrics and the usage of a finished step from the files that its command wrote to STEP/run.

    report.json        from `rag-r1 eval`: figures, each with its mean and interval, and counts of questions
    journal/, judge/   from `rag-r1 eval`: the requests to the policy and to a judge, with their usage
    summary.json       from `rag-r1 retriever data`: counts of searches and rows, and the usage of its steps

Usage is the number of requests and of their tokens, as an endpoint counts them. The values become the step's
facts, from which the table of rounds is made (table.py).
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from rag_r1.evaluation.judge import JUDGE_FOLDER
from rag_r1.io.bounded_json import read_json_object
from rag_r1.io.errors import reason_of
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import JOURNAL
from rag_r1.runs.response_cache import EXCHANGES, ResponseCache, Usage

#: Name of a metric in a step's facts -> its name in report.json.
METRICS = {"em": "em", "f1": "f1", "searches": "queries", "recall": "recall"}


def evaluation_metrics(step: Path) -> dict[str, Any]:
    """Return the results of `rag-r1 eval`: for each metric its mean over the data sources and its interval
    (`value`, `low`, `high`; None if unknown), the counts `questions`, `episodes` and `failed`, and the
    `usage`. Raises RunError if the report cannot be read."""
    path = step / "run" / "report.json"
    report = _read_object(path)
    try:
        metrics = {
            name: {key: report["figures"][column]["mean"][key] for key in ("value", "low", "high")}
            for name, column in METRICS.items()
        }
        all_counts = report["counts"]["all"]
        counts = {name: all_counts[name] for name in ("questions", "episodes", "failed")}
    except (KeyError, TypeError) as error:
        raise _unreadable(path, error) from error
    return {**metrics, **counts, "usage": _evaluation_usage(path.parent)}


def data_metrics(step: Path) -> dict[str, Any]:
    """Return the results of `rag-r1 retriever data`: the number of `searches` and of training `rows`, and
    the `usage`. Raises RunError if the summary cannot be read."""
    path = step / "run" / "summary.json"
    summary = _read_object(path)
    usage = Usage()
    try:
        usage.add(summary["trajectories"]["usage"])
        for scores in ("correctness", "relevance"):  # a score may be missing, or computed without a model
            usage.add(summary.get(scores, {}).get("usage", {}))
        searches, rows = summary["candidates"]["searches"], summary["selection"]["rows"]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _unreadable(path, error) from error
    return {"searches": searches, "rows": rows, "usage": _usage_dict(usage)}


def _evaluation_usage(run: Path) -> dict[str, int]:
    """Return the usage of the requests to the policy and to the judge, if there is one, over all invocations
    of the run."""
    usage = Usage()
    try:
        for folder in (run / JOURNAL, run / JUDGE_FOLDER):
            if (folder / EXCHANGES).is_file():  # a missing cache would be created by opening it
                with closing(ResponseCache.open(folder)) as cache:
                    usage.add(cache.usage)
    except OSError as error:
        raise RunError(str(error)) from error
    return _usage_dict(usage)


def _usage_dict(usage: Usage) -> dict[str, int]:
    """Return a usage in the form it has in the facts of a step."""
    return {name: getattr(usage, name) for name in ("requests", "prompt_tokens", "completion_tokens")}


def _read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises RunError if it cannot be read."""
    try:
        return read_json_object(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> RunError:
    """Return the error about a step's file that cannot be read, with the remedy."""
    reason = f"it has no {error}" if isinstance(error, KeyError) else reason_of(error)
    return RunError(f"{path} cannot be read ({reason}): remove its step's folder to make it again")
