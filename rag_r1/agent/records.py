"""Writes, reads and summarises trajectory records.

A record is a JSON object on one line: the trajectory (`Trajectory.to_dict`), and `step`, `split`,
`data_source` and `golds` from the run. Each trajectory is one record, however many rows it was trained in. A
run writes `<dir>/<split>/step_<step>-<process>.jsonl`, so no two processes share a file. With compression the
name ends in `.jsonl.gz`, and every line is a separate gzip member: gzip, zcat and Python read the file as
one, and if the process is killed, all lines but the last are whole.

The last line of a file may be incomplete, because its process was killed while writing or is still writing;
such a line is ignored. Any other line that is not a record, or is too long for one, is an error that names
file and line. Lines end only at the newline byte, since texts may contain Unicode's line separators (and lone
surrogates, which a policy can emit).
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from rag_r1.agent import KINDS, Trajectory
from rag_r1.io.appended_files import append_whole, json_line, open_to_append
from rag_r1.io.bounded_json import MAX_LINE_BYTES, read_json_line
from rag_r1.io.errors import DataError
from rag_r1.io.ordinary_files import open_ordinary

logger = logging.getLogger(__name__)

_FIELDS = frozenset(spec.name for spec in fields(Trajectory))
#: Names of files with records, as patterns of `Path.glob`.
_PATTERNS = ("*.jsonl", "*.jsonl.gz")
#: Number of bytes of a compressed file that are read at once.
_CHUNK = 1 << 20
#: zlib's code for a gzip header and trailer.
_GZIP = 31


class TrajectoryDump:
    """Appends records as JSON lines to one file for each split, step and process. Without a folder (None),
    nothing is written."""

    def __init__(self, folder: str | None, *, compressed: bool = False):
        self.folder = Path(folder) if folder else None
        self.suffix = ".jsonl.gz" if compressed else ".jsonl"
        #: A single thread, so that records are written in the order of the calls; it is joined at exit.
        self._thread: ThreadPoolExecutor | None = None
        #: Whether the last record could not be written.
        self._failing = False

    def write(self, record: Trajectory, *, step: int, split: str, **context: Any) -> bool:
        """Append one record with its context. Returns False if it could not be written, e.g. because the disk
        is full; then no partial line is left behind, and the run can continue. Of several failures in a row,
        the first is logged."""
        if self.folder is None:
            return True
        name = "".join(c if c.isalnum() or c in "-_" else "_" for c in split) or "train"
        path = self.folder / name / f"step_{step:06d}-{os.getpid()}{self.suffix}"
        try:
            append_records(path, {"step": step, "split": split, **context, **record.to_dict()})
        except OSError as error:
            if not self._failing:
                logger.error(
                    "cannot write trajectory to %s: %s (the training goes on without the records that do not "
                    "fit; search/undumped is their share): make room, or set rag_r1.trajectory_dir=null",
                    path,
                    error,
                )
            self._failing = True
            return False
        self._failing = False
        return True

    async def write_in_thread(self, record: Trajectory, **context: Any) -> bool:
        """Append one record as `write` does, without blocking the event loop: a slow disk delays this
        trajectory only. Once this returns, the record is in the file, even if the process is killed."""
        if self.folder is None:
            return True
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="trajectories")
        written = self._thread.submit(partial(self.write, record, **context))
        # If the caller is cancelled, the record is still written, since the trajectory was played.
        return await asyncio.shield(asyncio.wrap_future(written))


def append_records(path: Path, *values: dict[str, Any]) -> None:
    """Append records as lines to a file that only its owner can read: all of them, or none. A file whose name
    ends in .gz is compressed. Raises OSError."""
    data = b"".join(map(json_line, values))
    if path.suffix == ".gz":
        data = gzip.compress(data, 6, mtime=0)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = open_to_append(path)
    try:
        append_whole(file, data, os.lseek(file, 0, os.SEEK_END))
    finally:
        os.close(file)


#: Called with the location and the reason for each line that is not a record.
BadRecords = Callable[[str, object], None]


def read_records(*paths: str | Path, skip_broken: bool | BadRecords = False) -> Iterator[dict[str, Any]]:
    """Yield the records of files, and of all `*.jsonl` and `*.jsonl.gz` files in folders and their
    subfolders, sorted by name.

    A line that is not a record raises DataError, which names file and line. With `skip_broken` it is skipped
    instead, and is logged or, if `skip_broken` is a function, reported to it. Also raises DataError if a path
    does not exist.
    """
    return (record for _, record in located_records(*paths, skip_broken=skip_broken))


def located_records(
    *paths: str | Path, skip_broken: bool | BadRecords = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield records as `read_records` does, each with its location (file and line) for messages."""
    for path in map(Path, paths):
        if not path.exists():
            raise DataError(f"{path}: there is no such file or folder: correct the path")
        for file in _files_in(path, "**/") if path.is_dir() else [path]:
            yield from _records_of(file, skip_broken)


def _files_in(folder: Path, prefix: str = "") -> list[Path]:
    """Return the files with records in a folder, sorted by name; with the prefix `**/` also those in its
    subfolders."""
    return sorted(file for pattern in _PATTERNS for file in folder.glob(prefix + pattern))


def _lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, each with its newline; the last line may be incomplete. Raises DataError for
    a line that is too long, and zlib.error if compressed data is broken before its end."""
    with open_ordinary(path) as file:
        if path.suffix == ".gz":
            yield from _gzip_lines(file, path)
            return
        for number, line in enumerate(iter(partial(file.readline, MAX_LINE_BYTES + 1), b""), 1):
            if len(line) > MAX_LINE_BYTES:
                raise _too_long_error(path, number)
            yield line


def _gzip_lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the lines of a compressed file, as `_lines_of` does."""
    # The module gzip would take a file that was cut off in the header of a member for broken.
    decoder = zlib.decompressobj(_GZIP)
    remainder = b""
    number = 0
    while data := file.read(_CHUNK):
        has_more = False
        while data or has_more:
            # At most a chunk is unpacked at a time, since a few kilobytes can hold gigabytes.
            text = decoder.decompress(data, _CHUNK)
            *lines, remainder = (remainder + text).split(b"\n")
            yield from (line + b"\n" for line in lines)
            number += len(lines)
            if len(remainder) > MAX_LINE_BYTES:
                raise _too_long_error(path, number + 1)
            has_more = len(text) == _CHUNK and not decoder.eof
            data = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
            if decoder.eof:
                decoder = zlib.decompressobj(_GZIP)
    if remainder:
        yield remainder


def _too_long_error(path: Path, number: int) -> DataError:
    """Return the error for the line with this number, from 1."""
    return DataError(
        f"{path}, line {number}: longer than {MAX_LINE_BYTES >> 20} MiB, which no record is: remove the line"
    )


def _records_of(path: Path, skip_broken: bool | BadRecords) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the records of one file, each with its location; an incomplete last line is ignored."""
    try:
        for number, line in enumerate(_lines_of(path), 1):
            location = f"{path}, line {number}"
            if not line.strip():
                continue
            try:
                record = read_json_line(line)
                if not isinstance(record, dict):
                    raise ValueError("not a JSON object")
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n"):
                    return
                _skip_or_raise(skip_broken, location, f"not a trajectory record ({error})")
                continue
            yield location, record
    except zlib.error as error:
        _skip_or_raise(skip_broken, str(path), f"broken gzip data ({error}); what is before it was read")


def _skip_or_raise(skip_broken: bool | BadRecords, location: str, problem: str) -> None:
    """Report a broken line, which is skipped, to `skip_broken` or to the log. Raises DataError if
    `skip_broken` is False."""
    if not skip_broken:
        raise DataError(f"{location}: {problem}: remove it, or give another file")
    if callable(skip_broken):
        skip_broken(location, problem)
    else:
        logger.warning("%s: %s; it is left out", location, problem)


def records_by_step(folder: str | Path) -> dict[int, list[dict[str, Any]]]:
    """Return the records in the folder of a split, by training step; {} if there are none.

    If a run was killed and resumed, a trajectory may have been played twice; its latest record counts. Lines
    that are not records are logged and skipped.
    """
    files = [path for path in _files_in(Path(folder)) if path.name.startswith("step_")]
    files.sort(key=lambda path: path.stat().st_mtime_ns)
    steps: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for location, record in located_records(*files, skip_broken=True):
        step, id_ = record.get("step"), record.get("id")
        if isinstance(step, int) and isinstance(id_, str):
            steps[step][id_] = record
        else:
            _skip_or_raise(skip_broken=True, location=location, problem="it has no step or no id")
    return {step: list(records.values()) for step, records in sorted(steps.items())}


def trajectory_of(record: dict[str, Any]) -> Trajectory:
    """Return the trajectory in a record, without the fields of the run. Raises DataError if a field is
    missing, or if turns, calls, documents or failures have the wrong shape; the types of other values are not
    checked."""
    if missing := [name for name in ("id", "question", "protocol") if name not in record]:
        subject = f"the record {record['id']!r}" if "id" in record else "a record"
        raise DataError(f"{subject} is not a trajectory: it has no {', '.join(missing)}")
    try:
        return Trajectory.from_dict({key: value for key, value in record.items() if key in _FIELDS})
    except (TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"the record {record.get('id')!r} is not a trajectory: {error}") from error


def summary(trajectory: Trajectory) -> dict[str, float]:
    """Return the figures of one trajectory, with the same keys for all trajectories. Logs, evaluations and
    demos all take their figures from here, and report them under their own names."""
    turns = trajectory.turns
    statuses = [call.status for turn in turns for call in turn.calls]
    return {
        "turns": float(len(turns)),
        "searches": float(trajectory.n_searches),
        "calls": float(len(statuses)),
        "failed_calls": float(statuses.count("failed")),
        "refused_calls": float(statuses.count("refused")),
        "repeated_queries": float(trajectory.n_repeated_queries),
        "answered": float(trajectory.status == "answered"),
        "token_limit": float(trajectory.status == "token_limit"),
        "tool_failures": float(trajectory.n_tool_failures),
        "bad_row": float(trajectory.status == "bad_row"),
        "invalid_turns": float(sum(turn.action == "invalid" for turn in turns)),
        "removed_turns": float(sum(len(turn.removed) for turn in turns)),
        "simulated_observations": float(sum(turn.simulated for turn in turns)),
        "retries": float(trajectory.retries),
        "seconds": float(trajectory.seconds),
        **{f"failed_{kind}": float(trajectory.masked((kind,))) for kind in KINDS},
    }


def calls_by_tool(trajectory: Trajectory, tools: Iterable[str]) -> dict[str, float]:
    """Return the numbers of calls, failed calls and refused calls of each of these tools, with the same keys
    for all trajectories. Calls of tools that do not exist are counted by `summary` only."""
    counts: dict[str, float] = {}
    for name in tools:
        statuses = [call.status for turn in trajectory.turns for call in turn.calls if call.tool == name]
        counts[f"calls/{name}"] = float(len(statuses))
        counts[f"failed_calls/{name}"] = float(statuses.count("failed"))
        counts[f"refused_calls/{name}"] = float(statuses.count("refused"))
    return counts
