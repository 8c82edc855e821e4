"""Finds the record files below the paths of `rag-r1 view`, and the run and kind of each.

A run is the folder around `trajectories/` (trainings, evaluations) or `journal/` (everything that plays
episodes; rag_r1/runs/folder.py), or the folder of the file. If a run has both, its finished records count,
unless its journal is newer: then it goes on. Files of other names are taken if their first line is a record.
Folders that can be large and have no records (checkpoints, indexes) are not entered.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rag_r1.explorer.lines import START, whole_lines
from rag_r1.io.bounded_json import read_json_file
from rag_r1.runs.folder import PROVENANCE

KINDS = ("training", "validation", "evaluation", "traces", "filter", "retriever", "chat", "other")
JOURNAL = ("journal", "records.ndjson")
_ENDINGS = (".jsonl", ".jsonl.gz")
#: Names of folders without records, which are not searched, and the most levels below a path.
NOT_ENTERED = frozenset({"checkpoints", "hydra", "index", "huggingface", "node_modules", "__pycache__"})
_MAX_LEVELS = 12
#: Command of a run -> the kind of its episodes; that of any other command is `retriever`.
_RUN_KINDS = {"eval": "evaluation", "traces": "traces", "filter": "filter", "serve": "chat", "chat": "chat"}


@dataclass(frozen=True)
class RecordFile:
    """A file of records. `run`: the name of its run; `folder`: of the run; `kind`: one of KINDS, or None if
    it follows from each record (of a training)."""

    path: Path
    run: str
    folder: Path
    kind: str | None


class Sources:
    """The record files below some paths, also those that are written later. `common`: the folder that has all
    paths. Raises OSError for a path that does not exist."""

    def __init__(self, paths: Sequence[Path]):
        self.paths = [path.resolve(strict=True) for path in paths]
        folders = [path if path.is_dir() else path.parent for path in self.paths]
        self.common = Path(os.path.commonpath(folders))
        self._has_records: dict[Path, bool] = {}

    def files(self) -> list[RecordFile]:
        """The files that are there now, sorted by path within each run."""
        by_folder: dict[Path, list[Path]] = {}
        for path in sorted({file for top in self.paths for file in self._files_below(top)}):
            by_folder.setdefault(_run_of(path), []).append(path)
        return [
            RecordFile(path, self._name(folder), folder, kind)
            for folder, paths in by_folder.items()
            for kind in [kind_of(folder)]
            for path in _finished_or_journal(paths)
        ]

    def _name(self, folder: Path) -> str:
        """The name of a run: its path below `common`, told apart from the name of `common` itself."""
        if folder.is_relative_to(self.common) and folder != self.common:
            name = folder.relative_to(self.common).as_posix()
            return f"./{name}" if name == self.common.name else name
        return folder.name

    def _files_below(self, path: Path) -> Iterator[Path]:
        """Yields a file itself, or the record files in a folder and below it."""
        if path.is_file():
            yield path
            return
        for root, folders, names in os.walk(path):
            level = len(Path(root).relative_to(path).parts)
            skipped = NOT_ENTERED if level < _MAX_LEVELS else frozenset(folders)
            folders[:] = [name for name in folders if name not in skipped and not name.startswith(".")]
            for name in names:
                file = Path(root, name)
                is_journal = file.parts[-2:] == JOURNAL
                if not str(file).isprintable():
                    continue  # such as a name that is not UTF-8
                if is_journal or (name.endswith(_ENDINGS) and self.is_record_file(file)):
                    yield file

    def is_record_file(self, path: Path) -> bool:
        """Whether a file has records, judged by its folder, its name, or its first line."""
        if "trajectories" in path.parts[-3:-1] or path.name.startswith("step_"):
            return True
        if path not in self._has_records:
            try:
                if (first := next(islice(whole_lines(path, START), 1), None)) is None:
                    return False  # for now: it may be written later
                text = first.data or b""
                is_record = b'"turns"' in text and b'"question"' in text
            except (OSError, zlib.error):
                return False
            self._has_records[path] = is_record
        return self._has_records[path]


def run_settings(folder: Path) -> dict[str, Any]:
    """The settings of a run that plays episodes (rag_r1/runs/folder.py); {} for other folders."""
    for path in (folder / PROVENANCE, folder / "journal" / "settings.json"):
        try:
            return dict(read_json_file(path)["settings"])
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            continue
    return {}


def kind_of(folder: Path) -> str | None:
    """The kind of a run that has a journal, by the command in its settings; None for other folders."""
    command = run_settings(folder).get("command")
    return None if command is None else _RUN_KINDS.get(str(command), "retriever")


def _run_of(path: Path) -> Path:
    """The folder of the run to which a record file belongs."""
    parent = path.parent
    if path.parts[-2:] == JOURNAL or parent.name == "trajectories":
        return parent.parent
    if parent.parent.name == "trajectories":
        return parent.parent.parent
    return parent.parent if path.name.startswith("step_") else parent


def _finished_or_journal(paths: Sequence[Path]) -> list[Path]:
    """Those files of a run that count: its finished records, unless its journal is newer or alone."""
    journal = [path for path in paths if path.parts[-2:] == JOURNAL]
    finished = [path for path in paths if path not in journal]
    if journal and finished and _modified_ns(journal) > _modified_ns(finished):
        return journal
    return finished or journal


def _modified_ns(paths: Sequence[Path]) -> int:
    """The time at which the newest of the files was written, in nanoseconds; 0 if all are gone."""
    times = [0]
    for path in paths:
        try:
            times.append(path.stat().st_mtime_ns)
        except OSError:
            continue
    return max(times)
