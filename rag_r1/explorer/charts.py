"""Computes the curves of a run over its steps, from its records and from veRL's metrics in its folder.

A series has a `name`, a `group` (series of one group are drawn in one chart) and, for each step, the mean `y`
over `n` trajectories. For a training there are separate series for its trajectories and its validations. veRL
writes a line of metrics for each step into `metrics*.jsonl`; their series have an `n` of 1. If a resumed
training repeats a step, the values in the newer file are used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rag_r1.explorer.filters import Selection
from rag_r1.explorer.queries import Connection, fetch
from rag_r1.runs.rollout_metrics import logger_files
from rag_r1.training.metrics_files import MetricsFile

#: For each group, the names of its series, and the SQL expressions that are averaged.
_MEANS = {
    "reward": {"score": "score"},
    "em": {"right": '"right"::INTEGER'},
    "searches": {"searches": "searches", "repeated queries": "repeated"},
    "turns": {"turns": "turns", "generated tokens": "generated_tokens"},
    "retrieval": {"tool failures": "tool_failures", "masked": "masked::INTEGER"},
}
#: Prefixes of the names of veRL's metrics that are shown, with the groups of their charts. The longest prefix
#: of a name counts.
_METRIC_GROUPS = {
    "actor/entropy": "entropy",
    "timing_s/": "time",
    "search/logprob": "likelihood",
    "search/group": "groups",
    "search/score/": "sources",
    "search/valid_actions": "shares",
    "search/retrieval_recall": "shares",
    "search/observed_share": "shares",
    "search/cached_calls": "shares",
    "training/rollout_probs_diff_mean": "engine",
    "search/logprob_gap": "engine",
    "actor/ppo_kl": "engine",
    "actor/grad_norm": "gradient",
}


def charts(connection: Connection, run: str, selection: Selection) -> dict[str, Any]:
    """Return the series of the trajectories of a run that are in a selection; none for a run without steps.

    veRL's metrics describe whole steps, so they are left out if the selection has a filter.
    """
    with_step = selection.and_("run = ? AND step IS NOT NULL", run)
    parts = (_mean_series, _share_series, _reward_series)
    series = [entry for part in parts for entry in part(connection, with_step)]
    if selection == Selection():
        for (folder,) in fetch(connection, "SELECT DISTINCT folder FROM files WHERE run = ?", [run]):
            series += _metric_series(Path(folder))
    return {"run": run, "series": [entry for entry in series if entry["x"]]}


def _mean_series(connection: Connection, selection: Selection) -> Iterator[dict[str, Any]]:
    """Yield the series of _MEANS for each kind of trajectory."""
    means = [(group, name, value) for group, names in _MEANS.items() for name, value in names.items()]
    columns = ", ".join(f"avg({value}), count({value})" for _, _, value in means)
    sql = f"""SELECT kind, step, {columns} FROM trajectories WHERE {selection.where}
            GROUP BY kind, step ORDER BY kind, step"""
    counted = fetch(connection, sql, selection.values)
    for kind in dict.fromkeys(row[0] for row in counted):
        kind_rows = [row for row in counted if row[0] == kind]
        for index, (group, name, _) in enumerate(means):
            first = 2 + 2 * index  # the column with the mean; the next one has the count
            points = [(row[1], row[first], row[first + 1]) for row in kind_rows]
            yield _series(f"{kind}: {name}", group, points)


def _share_series(connection: Connection, selection: Selection) -> Iterator[dict[str, Any]]:
    """Yield the share of each status and of each cause, for each kind of trajectory."""
    for column in ("status", "cause"):
        sql = f"""SELECT kind || ': ' || name, step, n / sum(n) OVER (PARTITION BY kind, step), n FROM (
                SELECT kind, step, coalesce("{column}", 'none') AS name, count(*) AS n FROM trajectories
                WHERE {selection.where} GROUP BY ALL) ORDER BY 1, 2"""
        yield from _by_name(fetch(connection, sql, selection.values), column)


def _reward_series(connection: Connection, selection: Selection) -> list[dict[str, Any]]:
    """Return the mean of each term of the reward, for each kind of trajectory. Terms that other charts show
    are left out."""
    sql = f"""SELECT kind || ': ' || term, step, avg(value), count(value) FROM (
            SELECT kind, step, unnest(map_keys(reward_terms)) AS term,
                unnest(map_values(reward_terms)) AS value
            FROM trajectories WHERE {selection.where})
            WHERE term NOT IN ('score', 'em', 'missing_terms') GROUP BY 1, 2 ORDER BY 1, 2"""
    return _by_name(fetch(connection, sql, selection.values), "reward")


def _by_name(rows: list[tuple], group: str) -> list[dict[str, Any]]:
    """Make a series for each name, from rows of (name, step, y, n)."""
    names = dict.fromkeys(row[0] for row in rows)
    return [_series(name, group, [row[1:] for row in rows if row[0] == name]) for name in names]


def _series(name: str, group: str, points: list[tuple]) -> dict[str, Any]:
    """Make a series of the points (step, y, n) that have a y."""
    valued = [point for point in points if point[1] is not None]
    x, y, n = ([point[i] for point in valued] for i in range(3))
    return {"name": name, "group": group, "x": x, "y": y, "n": n}


def _metric_series(folder: Path) -> list[dict[str, Any]]:
    """Read the series of veRL's metrics from the folder of a run. Files that cannot be read are skipped."""
    values: dict[str, dict[int, float]] = {}  # by the name of the metric and the step
    for file in filter(Path.is_file, logger_files(folder)):
        with suppress(OSError):
            for step, metrics in MetricsFile(file).new_lines():
                for name, value in _plotted_metrics(metrics).items():
                    values.setdefault(name, {})[step] = value
    return [
        _series(name, _metric_group(name), [(step, value, 1) for step, value in sorted(by_step.items())])
        for name, by_step in sorted(values.items())
    ]


def _metric_group(name: str) -> str:
    """Return the group of the chart that shows a metric."""
    return _METRIC_GROUPS[max(filter(name.startswith, _METRIC_GROUPS), key=len)]


def _plotted_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return those metrics of a step that are shown and are finite numbers."""
    shown = ((name, value) for name, value in metrics.items() if name.startswith(tuple(_METRIC_GROUPS)))
    return {
        name: float(value)
        for name, value in shown
        if isinstance(value, int | float) and abs(value) <= sys.float_info.max
    }
