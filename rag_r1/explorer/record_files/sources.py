"""Finds the record files below the paths of `rag-r1 view`, with the run and the kind of each.

The folder of a run is the one that contains `trajectories/` (trainings, evaluations) or `journal/` (all
commands that play episodes; rag_r1/runs/folder.py); for other files it is the folder of the file. If a run
has a journal and finished records, the finished records are read, unless the journal is newer, because then
the run has been resumed. A file with another name is a record file if its first line is a record. Folders
that may be large and have no records (checkpoints, indexes) are not searched.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_r1.explorer.record_files.lines import START, whole_lines
from rag_r1.io.bounded_json import read_json_file
from rag_r1.runs.folder import PROVENANCE

#: The kinds of trajectories.
KINDS = ("training", "validation", "evaluation", "traces", "filter", "retriever", "chat", "other")
#: The last two parts of the path of a journal.
JOURNAL = ("journal", "records.ndjson")
#: Endings of the names of files that may have records.
_ENDINGS = (".jsonl", ".jsonl.gz")
#: Names of folders that are not searched.
NOT_ENTERED = frozenset({"checkpoints", "hydra", "index", "huggingface", "node_modules", "__pycache__"})
#: Folders at deeper levels below a path are not searched either.
_MAX_LEVELS = 12
#: The kind of the episodes of each command; for other commands it is `retriever`.
_RUN_KINDS = {"eval": "evaluation", "traces": "traces", "filter": "filter", "serve": "chat", "chat": "chat"}


@dataclass(frozen=True)
class RecordFile:
    """A file with trajectory records."""

    path: Path
    #: Name and folder of the run.
    run: str
    folder: Path
    #: One of KINDS. None for a training, where it follows from each record.
    kind: str | None


class Sources:
    """The record files below some paths, including those that are written later.

    Raises OSError if a path does not exist.
    """

    def __init__(self, paths: Sequence[Path]):
        self.paths = [path.resolve(strict=True) for path in paths]
        folders = [path if path.is_dir() else path.parent for path in self.paths]
        #: The deepest folder that contains all paths.
        self.common = Path(os.path.commonpath(folders))
        self._has_records: dict[Path, bool] = {}

    def files(self) -> list[RecordFile]:
        """Find the files that exist now; within each run they are sorted by path."""
        by_folder: dict[Path, list[Path]] = {}
        for path in sorted({file for top in self.paths for file in self._files_below(top)}):
            by_folder.setdefault(_run_of(path), []).append(path)
        files: list[RecordFile] = []
        for folder, paths in by_folder.items():
            run, kind = self._name(folder), kind_of(folder)
            files += [RecordFile(path, run, folder, kind) for path in _finished_or_journal(paths)]
        return files

    def _name(self, folder: Path) -> str:
        """Return the name of a run, which is its path below `common`.

        `./` distinguishes a run with the same name as `common` from the run in `common` itself.
        """
        if folder.is_relative_to(self.common) and folder != self.common:
            name = folder.relative_to(self.common).as_posix()
            return f"./{name}" if name == self.common.name else name
        return folder.name

    def _files_below(self, path: Path) -> Iterator[Path]:
        """Yield the record files in a folder and below it; if `path` is a file, only this one."""
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
                if not f"{root[len(str(path)) :]}{name}".isprintable():
                    continue  # for example, its name is not UTF-8
                if is_journal or (name.endswith(_ENDINGS) and self.is_record_file(file)):
                    yield file

    def is_record_file(self, path: Path) -> bool:
        """Return whether a file has records, which its folder, its name or its first line tells."""
        if "trajectories" in path.parts[-3:-1] or path.name.startswith("step_"):
            return True
        if path not in self._has_records:
            try:
                if (first := next(whole_lines(path, START), None)) is None:
                    return False  # not remembered, because the file may be written later
                line = first.data or b""
                is_record = b'"turns"' in line and b'"question"' in line
            except (OSError, zlib.error):
                return False
            self._has_records[path] = is_record
        return self._has_records[path]


def run_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of a run that plays episodes (rag_r1/runs/folder.py); {} for other folders."""
    for path in (folder / PROVENANCE, folder / "journal" / "settings.json"):
        try:
            return dict(read_json_file(path)["settings"])
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            continue
    return {}


def kind_of(folder: Path) -> str | None:
    """Return the kind of a run that plays episodes, by its command; None for other folders."""
    command = run_settings(folder).get("command")
    return None if command is None else _RUN_KINDS.get(str(command), "retriever")


def _run_of(path: Path) -> Path:
    """Return the folder of the run to which a record file belongs."""
    parent = path.parent
    if path.parts[-2:] == JOURNAL or parent.name == "trajectories":
        return parent.parent
    if parent.parent.name == "trajectories":
        return parent.parent.parent
    return parent.parent if path.name.startswith("step_") else parent


def _finished_or_journal(paths: Sequence[Path]) -> list[Path]:
    """Choose the files that are read: finished records, or the journal if it is newer or alone."""
    journal = [path for path in paths if path.parts[-2:] == JOURNAL]
    finished = [path for path in paths if path not in journal]
    if journal and finished and _modified_ns(journal) > _modified_ns(finished):
        return journal
    return finished or journal


def _modified_ns(paths: Sequence[Path]) -> int:
    """Return the time of the last write to any of the files, in nanoseconds; 0 if all have disappeared."""
    times = [0]
    for path in paths:
        try:
            times.append(path.stat().st_mtime_ns)
        except OSError:
            continue
    return max(times)
