"""Queries about many trajectories: the overview, rows, histograms, causes of failure and comparisons of runs.

Each function takes a connection to the cache (cache.py), and returns JSON types, which app.py sends as they
are. Column names in the SQL come from schema.py, never from a request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import duckdb

from rag_r1.evaluation.failure_causes import CAUSES
from rag_r1.explorer.filters import FilterError, Selection
from rag_r1.explorer.record_files.file_state import FileState
from rag_r1.explorer.rows import json_row
from rag_r1.explorer.schema import COLUMNS
from rag_r1.explorer.store import Store

Connection = duckdb.DuckDBPyConnection
#: The name of a run and one of its steps; None: the last step.
RunStep = tuple[str, int | None]
#: The columns whose values the page offers as filters.
FACETS = ("run", "kind", "split", "source", "status", "cause", "right")
#: Maximum number of values of a column that are listed.
_MAX_VALUES = 200
#: Questions and answers in lists are cut to this number of characters.
_MAX_CHARACTERS = 300
#: Maximum number of bins in a histogram.
_MAX_BINS = 30
#: Maximum number of faults of a run that are listed.
_MAX_FAULTS = 20
#: The types of columns with numbers.
_NUMBERS = ("BIGINT", "DOUBLE")
#: The names of the other types in the API.
_TYPE_NAMES = {"VARCHAR": "text", "BOOLEAN": "bool", "VARCHAR[]": "list", "MAP(VARCHAR, DOUBLE)": "map"}
_ALL_COLUMNS = ", ".join(f'"{name}"' for name in COLUMNS)


def fetch(connection: Connection, sql: str, values: Sequence[Any] = ()) -> list[tuple]:
    """Return all rows of a query; `values` are those of its parameters."""
    return connection.execute(sql, list(values)).fetchall()


def rows(connection: Connection, clauses: str, values: Sequence[Any]) -> list[dict[str, Any]]:
    """Return rows of the table `trajectories`, with shortened texts.

    `clauses` are the clauses of the query from WHERE on, and `values` those of their parameters.
    """
    records = fetch(connection, f"SELECT {_ALL_COLUMNS} FROM trajectories {clauses}", values)
    return [json_row(dict(zip(COLUMNS, row, strict=True)), _MAX_CHARACTERS) for row in records]


def overview(connection: Connection, store: Store) -> dict[str, Any]:
    """Return the runs with their figures, the values that filters can have, and the columns."""
    columns = [{"name": name, "type": _TYPE_NAMES.get(kind, "number")} for name, kind in COLUMNS.items()]
    return {
        "version": store.version,
        "title": store.title,
        "runs": _runs(connection, store),
        "facets": {name: _facet(connection, name) for name in FACETS},
        "columns": columns,
    }


def _runs(connection: Connection, store: Store) -> list[dict[str, Any]]:
    """Return the runs by name, with the figures of their trajectories and the faults of their files."""
    files: dict[str, list[FileState]] = {}
    for state in store.files():
        files.setdefault(state.run, []).append(state)
    sql = """SELECT run, mode(kind), count(*), min(step), max(step),
            count(*) FILTER ("right"), count("right") FROM trajectories GROUP BY run ORDER BY run"""
    by_run = {run: figures for run, *figures in fetch(connection, sql)}
    runs = []
    for run, states in sorted(files.items()):
        kind, count, first, last, right, judged = by_run.get(run, (None, 0, None, None, 0, 0))
        entry = {
            "run": run,
            "kind": kind,
            "path": states[-1].folder,
            "records": count,
            "steps": None if first is None else [first, last],
            "right": right,
            "judged": judged,
            "broken": sum(state.broken for state in states),
            "faults": [fault for state in states for fault in state.faults][:_MAX_FAULTS],
            "growing": store.is_growing(run),
        }
        runs.append(entry)
    return runs


def _facet(connection: Connection, name: str) -> list[list[Any]]:
    """Return the most frequent values of a column with their counts, the most frequent first."""
    sql = f"""SELECT "{name}", count(*) AS n FROM trajectories
            GROUP BY 1 ORDER BY n DESC, 1 LIMIT {_MAX_VALUES}"""
    return [list(row) for row in fetch(connection, sql)]


def trajectories(
    connection: Connection, selection: Selection, sort: str, descending: bool, offset: int, limit: int
) -> dict[str, Any]:
    """Return `limit` rows of a selection from `offset` on, sorted by a column, and counts of all its rows."""
    order = f'"{sort}" {"DESC" if descending else "ASC"} NULLS LAST, tid'
    # Counts and row numbers come from one query, since a search for text is slow. The other columns are read
    # for the chosen rows only.
    sql = f"""WITH selected AS MATERIALIZED (
                SELECT tid, "right", "{sort}" FROM trajectories WHERE {selection.where}),
            chosen AS (SELECT tid FROM selected ORDER BY {order} LIMIT ? OFFSET ?)
            SELECT count(*), count(*) FILTER ("right"), count(*) FILTER (NOT "right"),
            (SELECT list(tid) FROM chosen) FROM selected"""
    total, right, wrong, tids = fetch(connection, sql, [*selection.values, limit, offset])[0]
    page = rows(connection, f"WHERE list_contains(?, tid) ORDER BY {order}", [tids or []])
    return {"total": total, "right": right, "wrong": wrong, "unjudged": total - right - wrong, "rows": page}


def histogram(connection: Connection, selection: Selection, column: str) -> dict[str, Any]:
    """Return the distribution of a column in a selection.

    A column of numbers has `bins`; another one has its most frequent `values`. Each comes with the number of
    its trajectories, and how many of these are right.
    """
    if COLUMNS[column] in _NUMBERS:
        return {"column": column, "bins": _bins(connection, selection, column)}
    sql = f"""SELECT "{column}", count(*) AS n, count(*) FILTER ("right") FROM trajectories
            WHERE {selection.where} GROUP BY 1 ORDER BY n DESC, 1 LIMIT {_MAX_VALUES}"""
    return {"column": column, "values": [list(row) for row in fetch(connection, sql, selection.values)]}


def _bins(connection: Connection, selection: Selection, column: str) -> list[dict[str, Any]]:
    """Return the bins of a column of numbers, each with its edges and counts; none without numbers."""
    valid = selection.and_(f'"{column}" IS NOT NULL')
    sql = f'SELECT min("{column}"), max("{column}") FROM trajectories WHERE {valid.where}'
    [(low, high)] = fetch(connection, sql, valid.values)
    if low is None:
        return []
    is_whole = COLUMNS[column] != "DOUBLE"
    if is_whole:
        count = int(min(_MAX_BINS, high - low + 1))
        # Half a number more at both ends, so that bins of single numbers have these in their middle.
        begin, width = low - 0.5, (high - low + 1) / count
    else:
        count = _MAX_BINS if high > low else 1
        begin, width = low, (high - low) / count or 1.0
    sql = f"""SELECT least(? - 1, floor(("{column}" - ?) / ?))::INTEGER AS bin, count(*),
                count(*) FILTER ("right") FROM trajectories WHERE {valid.where} GROUP BY bin"""
    counted = fetch(connection, sql, [count, begin, width, *valid.values])
    counts = {index: (n, right) for index, n, right in counted}
    bins = []
    for index in range(count):
        n, right = counts.get(index, (0, 0))
        lo, hi = (low, low) if low == high else _edges(begin, width, index, is_whole)
        bins.append({"lo": lo, "hi": hi, "n": n, "right": right})
    return bins


def _edges(begin: float, width: float, index: int, is_whole: bool) -> tuple[float, float]:
    """Return the edges of a bin. For whole numbers they are the smallest and the largest number in it."""
    lo, hi = begin + index * width, begin + (index + 1) * width
    return (math.ceil(lo), math.ceil(hi) - 1) if is_whole else (lo, hi)


def causes(connection: Connection, selection: Selection, examples: int = 5) -> dict[str, Any]:
    """Return the causes of wrong answers in a selection with their numbers, in the order of CAUSES.

    Each cause has up to `examples` trajectories, which are spread over all steps and the same each time.
    """
    sql = f"""SELECT cause, count(*), list_sort(list(tid ORDER BY hash(tid))[:{examples:d}]) FROM trajectories
            WHERE {selection.where} AND cause IS NOT NULL GROUP BY cause"""
    counted = {name: (n, tids) for name, n, tids in fetch(connection, sql, selection.values)}
    cases = [
        {"name": name, "sentence": sentence, "n": counted[name][0], "examples": counted[name][1]}
        for name, sentence in CAUSES.items()
        if name in counted
    ]
    return {"causes": cases, "failures": sum(cause["n"] for cause in cases)}


def compare(connection: Connection, a: RunStep, b: RunStep, offset: int, limit: int) -> dict[str, Any]:
    """Compare two runs on the questions that both have. Returns counts and, from `offset` on, `limit` pairs
    of rows, those with different verdicts first.

    The validation of a training is compared, and if a question has several samples, the first one counts.
    Raises FilterError if a run has no trajectories at its step.
    """
    joined, values = _pair_query(connection, a, b)
    sql = f"""SELECT count(*), count(*) FILTER (a_right), count(*) FILTER (b_right),
            count(*) FILTER (b_right AND NOT a_right), count(*) FILTER (a_right AND NOT b_right)
            FROM ({joined})"""
    counts = fetch(connection, sql, values)[0]
    sql = f"""SELECT a_tid, b_tid FROM ({joined})
            ORDER BY a_right = b_right, b_right, a_right, a_tid LIMIT ? OFFSET ?"""
    tid_pairs = fetch(connection, sql, [*values, limit, offset])
    tids = [tid for pair in tid_pairs for tid in pair]
    # A run may be read anew between the queries. A pair of which a row has gone is then left out.
    by_tid = {row["tid"]: row for row in rows(connection, "WHERE list_contains(?, tid)", [tids])}
    cases = [
        {
            "question": a_row["question"],
            "golds": a_row["golds"],
            "a": a_row,
            "b": b_row,
            "change": _change(bool(a_row["right"]), bool(b_row["right"])),
        }
        for a_row, b_row in ((by_tid.get(a_tid), by_tid.get(b_tid)) for a_tid, b_tid in tid_pairs)
        if a_row and b_row
    ]
    names = ("both", "a_right", "b_right", "gained", "lost")
    return {**dict(zip(names, counts, strict=True)), "rows": cases}


def _pair_query(connection: Connection, a: RunStep, b: RunStep) -> tuple[str, list[Any]]:
    """Build the query for the pairs of trajectories of two runs; returns it with its parameters' values."""
    queries: list[str] = []
    values: list[Any] = []
    for run, step in (a, b):
        where, parameters = _run_condition(connection, run, step)
        queries.append(f"SELECT DISTINCT ON (question_key) * FROM trajectories WHERE {where} "
                       "ORDER BY question_key, id, tid")  # fmt: skip
        values += parameters
    query = f"""SELECT a.tid AS a_tid, b.tid AS b_tid, a."right" IS TRUE AS a_right,
        b."right" IS TRUE AS b_right FROM ({queries[0]}) a JOIN ({queries[1]}) b USING (question_key)"""
    return query, values


def _run_condition(connection: Connection, run: str, step: int | None) -> tuple[str, list[Any]]:
    """Build the condition for the rows of a run that are compared; returns it with its parameters' values.

    Raises FilterError if there are no such rows.
    """
    sql = """SELECT kind, max(step) FROM trajectories WHERE run = ? AND (? IS NULL OR step = ?)
            GROUP BY kind ORDER BY kind = 'training', kind"""
    kinds = fetch(connection, sql, [run, step, step])
    if not kinds:
        raise FilterError(f"the run {run[:200]!r} has no trajectories, or none at this step: choose others")
    kind, last_step = kinds[0]
    chosen = last_step if step is None else step
    return "run = ? AND kind = ? AND step IS NOT DISTINCT FROM ?", [run, kind, chosen]


def _change(a_right: bool, b_right: bool) -> str:
    """Name the change of a verdict from the first run to the second."""
    if a_right == b_right:
        return "same_right" if a_right else "same_wrong"
    return "gained" if b_right else "lost"
