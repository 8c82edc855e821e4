"""Collects what the explorer shows of one trajectory: record, siblings, history, advantage and cause.

The siblings are the trajectories of its group, which have been sampled for the same question in the same
step. The history has the trajectories of the question at all steps of the run. The record is read from
its file, since the cache has only its most important values.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rag_r1.evaluation.failure_causes import CAUSES, DocumentPosition, Record, gold_positions
from rag_r1.explorer.queries import Connection, fetch, rows
from rag_r1.explorer.record_files.lines import Position, line_at
from rag_r1.explorer.rows import json_row
from rag_r1.explorer.schema import COLUMNS
from rag_r1.io.bounded_json import limited_lines, read_json_line
from rag_r1.io.errors import DataError
from rag_r1.io.ordinary_files import open_ordinary
from rag_r1.protocols.actions import well_formed

#: Maximum number of siblings, from which the mean and deviation of their group are computed, and of rows in
#: the history. Trainings have much smaller groups.
_MAX_ROWS = 500
#: Maximum number of queries, and of gold passages, in the evidence of a cause.
_MAX_EVIDENCE = 50
#: Maximum number of bytes in a line with an advantage.
_MAX_LINE_BYTES = 1 << 16
#: The constant that veRL adds to the deviation of a group (core_algos.py, `compute_grpo_outcome_advantage`).
_EPSILON = 1e-6
#: The figures of an advantage in the answer, with their names in the files of the training.
_RECORDED = {
    "value": "advantage", "min": "advantage_min", "max": "advantage_max", "score": "score",
    "n": "group_size", "mean": "group_mean", "std": "group_std",
}  # fmt: skip


def trajectory(connection: Connection, tid: int) -> dict[str, Any]:
    """Return a trajectory with all that the explorer shows of it, as JSON types: the answer of
    `/api/trajectory/TID`.

    Raises DataError if there is no trajectory with this number, or its file has changed.
    """
    names = ", ".join(f't."{name}"' for name in COLUMNS)
    sql = f"""SELECT {names}, f.path, t.base, t."offset", t.length
            FROM trajectories t JOIN files f USING (file_id) WHERE t.tid = ?"""
    matches = fetch(connection, sql, [tid])
    if not matches:
        raise DataError(f"there is no trajectory {tid}: its file may have been read anew")
    *values, path, base, offset, length = matches[0]
    row = json_row(dict(zip(COLUMNS, values, strict=True)))
    record, gold_passages = _read_record(Path(path), Position(base, offset), length, row["id"])
    siblings = rows(connection, f'WHERE "group" = ? ORDER BY id, tid LIMIT {_MAX_ROWS}', [row["group"]])
    clauses = f"WHERE run = ? AND question_key = ? ORDER BY step, kind, id, tid LIMIT {_MAX_ROWS}"
    history = rows(connection, clauses, [row["run"], row["question_key"]])
    group = _group_of([sibling["score"] for sibling in siblings if sibling["score"] is not None])
    return {
        "row": row,
        "record": record,
        "gold_passages": gold_passages,
        "siblings": siblings,
        "group": group,
        "history": history,
        "advantage": _advantage(row, group, _recorded_advantage(Path(path), row, record)),
        "cause": _cause(row["cause"], record, gold_passages),
    }


def _read_record(
    path: Path, position: Position, length: int, record_id: str
) -> tuple[Record, list[DocumentPosition]]:
    """Read a record; returns it with the positions of the gold passages that it was shown.

    Raises DataError if the record is no longer at this position of its file.
    """
    try:
        record = read_json_line(line_at(path, position, length))
        found = record.get("id")
        if well_formed("" if found is None else str(found)) != record_id:
            raise ValueError("it has another record at this position")
        gold_passages = gold_positions(record)
    except (OSError, zlib.error, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise DataError(f"{path} has changed since it was read ({error}): try again") from error
    return _without_nan(record), gold_passages


def _without_nan(record: Any) -> Any:
    """Replace NaN and infinities, which Python writes although JSON does not have them, by None."""
    try:
        json.dumps(record, allow_nan=False)
        return record
    except ValueError:
        return json.loads(json.dumps(record), parse_constant=lambda name: None)


def _group_of(scores: list[float]) -> dict[str, Any]:
    """Return the number, the mean and the sample deviation of the scores of a group."""
    if not scores:
        return {"n": 0, "mean": None, "std": None}
    std = stdev(scores) if len(scores) > 1 else 0.0
    return {"n": len(scores), "mean": fmean(scores), "std": std}


def _advantage(
    row: Mapping[str, Any], group: Mapping[str, Any], recorded: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return the advantage of a trajectory from a training.

    It is the one that the trainer has `recorded`, or else it is computed by GRPO's formula. None if neither
    is possible.
    """
    if row["kind"] != "training" or row["score"] is None:
        return None
    if recorded is not None:
        return {**recorded, "recorded": True}
    if group["n"] < 2:
        return None
    value = (row["score"] - group["mean"]) / (group["std"] + _EPSILON)
    return {"value": value, "score": row["score"], **group, "recorded": False}


def _recorded_advantage(path: Path, row: Mapping[str, Any], record: Record) -> dict[str, Any] | None:
    """Read the figures that the trainer has written beside the records, by their names in _RECORDED; None if
    there are none.

    rag_r1/plugin/recording_trainer.py writes them, with a line for each sample of a group.
    """
    group, sample = record.get("group"), row["id"].rpartition("#")[2]
    if not group or row["step"] is None or not sample.isdecimal():
        return None
    for file in path.parent.parent.glob(f"advantages/step_{row['step']:06d}-*.ndjson"):
        try:
            with open_ordinary(file) as lines:
                for line in limited_lines(lines, _MAX_LINE_BYTES):
                    entry = read_json_line(line)
                    is_of_group = isinstance(entry, dict) and entry.get("group") == group
                    if is_of_group and entry.get("sample") == int(sample):
                        return _without_nan({name: entry.get(key) for name, key in _RECORDED.items()})
        except (OSError, ValueError, RecursionError):  # a training may be writing the file's last line
            continue
    return None


def _cause(name: str | None, record: Record, gold_passages: list[DocumentPosition]) -> dict[str, Any] | None:
    """Return the cause of a wrong answer, with the queries and the positions of gold passages as evidence;
    None without a cause."""
    if name is None:
        return None
    calls = [call for turn in record["turns"] for call in turn.get("calls") or ()]
    queries = [str((call.get("arguments") or {}).get("query", "")) for call in calls]
    evidence = {"queries": queries[:_MAX_EVIDENCE], "gold_passages": gold_passages[:_MAX_EVIDENCE]}
    return {"name": name, "sentence": CAUSES[name], "evidence": evidence}
