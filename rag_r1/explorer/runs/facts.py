"""Finds the runs below a folder: kind, state, steps, figures, and the command that continues each.

Only files are read: `settings.yaml` (rag_r1/options/settings_file.py), the journal
(rag_r1/runs/folder.py), reports, veRL's metrics and configuration, the names of record files and the
lines of a validation's. No process is asked; the system's list of file locks says which folders one holds.

    running    a process holds the folder, or its files were written to in the last ten minutes
    finished   a result is there that is not older than the records: a report, a summary, a model, `done.json`
    stopped    neither
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rag_r1.explorer.sources import NOT_ENTERED, run_settings
from rag_r1.io.bounded_json import limited_lines, read_json_file, read_json_line
from rag_r1.io.bounded_yaml import YamlError, read_yaml
from rag_r1.options.settings_file import SETTINGS
from rag_r1.training.guard.attempts import SUPERVISOR_LOCK

#: Begins of the names of folders that are not searched: hidden ones, checkpoints.
_SKIPPED_BEGINS = (".", "global_step_")
_CONFIG = Path("hydra", ".hydra", "config.yaml")
#: Files that a command writes when it has its result, in the folder of the run.
_RESULTS = (
    *("report.json", "summary.json", "search_card.json", "results.json", "finished", "model"),
    *("data_summary.json", "sft_summary.json", "corpus.json", "data_card.json"),  # data, documents, questions
)
#: Those of them that are also written when a run stops; then their key `stopped` says why.
_MAY_BE_PARTIAL = ("summary.json", "data_card.json")
_COMMAND = re.compile(r"# rag-r1 ([a-z][a-z-]*(?: [a-z][a-z-]*)?) ")
_BEGIN = re.compile(r"# Relative paths start at (.+)")
_STEP_FILE = re.compile(r"step_(\d+)-\d+\.jsonl(?:\.gz)?")
_VALIDATION_EM = re.compile(r"val-(?:core|aux)/.+/em/mean@\d+")
#: Seconds after its last write for which a run counts as running.
_QUIET_S = 600.0
#: Errors of a file that is missing, or that does not have what it should.
_UNREADABLE = (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError)


@dataclass(frozen=True)
class RunFacts:
    """A run, of which None is unknown. `step` of `steps`: of a training, or the episodes of another run; `em`
    over `n` judged episodes; `age_s`: seconds since a file was written; `command`: goes on with a run that
    has stopped."""

    name: str
    path: str
    kind: str
    state: str
    step: int | None
    steps: int | None
    em: float | None
    n: int | None
    age_s: float
    command: str | None


class _Progress(NamedTuple):
    """How far a run is: the fields of RunFacts with these names."""

    step: int | None
    steps: int | None
    em: float | None
    n: int | None


def runs_below(top: Path) -> list[RunFacts]:
    """The runs in a folder and below it, sorted by path. Raises OSError if it cannot be read."""
    os.scandir(top).close()  # os.walk ignores errors
    inodes = _locked_inodes()
    return [_facts(top, folder, inodes) for folder in sorted(_run_folders(top.resolve()))]


def _run_folders(top: Path) -> Iterator[Path]:
    """Yields the folders that settings, a configuration, a journal or records mark as those of runs."""
    skipped = {*NOT_ENTERED, "journal"}
    for root, folders, names in os.walk(top):
        folders[:] = [
            name for name in folders if name not in skipped and not name.startswith(_SKIPPED_BEGINS)
        ]
        folder = Path(root)
        is_run = SETTINGS in names or (folder / _CONFIG).is_file() or (folder / "journal").is_dir()
        if is_run or (folder / "trajectories").is_dir():
            yield folder
        folders[:] = [name for name in folders if name != "trajectories"]


def _facts(top: Path, folder: Path, locked_inodes: frozenset[int]) -> RunFacts:
    """The facts of the run in `folder`, named by its path below `top`."""
    kind, working_directory = _settings_of(folder)
    is_training = kind == "train" or (folder / "trajectories" / "train").is_dir()
    newest = max(_file_times(folder), default=0.0)
    progress = _training_progress(folder) if is_training else _rollout_progress(folder)
    if _is_locked(folder, locked_inodes):
        state = "running"
    elif _has_result(folder) or _is_complete(folder, is_training, progress):
        state = "finished"
    else:
        # A supervised training runs only while its lock is held, however new its files are.
        is_fresh = time.time() - newest < _QUIET_S and not (folder / SUPERVISOR_LOCK).exists()
        state = "running" if is_fresh else "stopped"
    return RunFacts(
        name=folder.relative_to(top.resolve()).as_posix() if folder != top.resolve() else folder.name,
        path=str(folder),
        kind=kind or ("train" if is_training else "rollouts"),
        state=state,
        **progress._asdict(),
        age_s=max(time.time() - newest, 0.0),
        command=_resume_command(folder, working_directory) if state == "stopped" else None,
    )


def _is_locked(folder: Path, locked_inodes: frozenset[int]) -> bool:
    """Whether a process holds one of the locks that a run takes in its folder."""
    names = ("", "lock", "journal", "journal/lock", "checkpoints/lock", SUPERVISOR_LOCK)
    return any(_inode(folder / name) in locked_inodes for name in names)


def _settings_of(folder: Path) -> tuple[str | None, Path | None]:
    """Returns the command that wrote a folder, and its working directory; None for what is unknown."""
    for path in (folder / SETTINGS, folder / "checkpoints" / SETTINGS):
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                first, second = file.readline(4096), file.readline(4096)
        except OSError:
            continue
        if command := _COMMAND.match(first):
            directory = _BEGIN.match(second)
            return command[1], Path(directory[1]) if directory else None
    command = run_settings(folder).get("command")
    return (None if command is None else str(command)), None


def _resume_command(folder: Path, working_directory: Path | None) -> str | None:
    """The command that continues a run: its own, or that of the run in whose folder it lies."""
    for run in (folder, folder.parent):
        kind, directory = _settings_of(run)
        if kind is None or not (run / SETTINGS).is_file():
            continue
        directory = directory or working_directory
        is_absolute = directory is not None and directory.is_absolute()
        cd = f"cd {shlex.quote(str(directory))} && " if is_absolute else ""
        return f"{cd}rag-r1 {kind} {shlex.quote(f'@{run / SETTINGS}')}"
    return None


def _is_complete(folder: Path, is_training: bool, progress: _Progress) -> bool:
    """Whether all steps of a training, or all episodes and their report, are there, whatever the times of the
    files: those of a copied folder are others."""
    step, steps = progress.step, progress.steps
    has_all_steps = step is not None and steps is not None and step >= steps > 0
    return has_all_steps and (is_training or (folder / "report.json").is_file())


def _has_result(folder: Path) -> bool:
    """Whether a complete result is there that is not older than the records."""
    if (folder / "done.json").is_file():
        return True
    records = _mtime(folder / "journal" / "records.ndjson")
    for name in _RESULTS:
        if (written := _mtime(folder / name)) and written >= records:
            try:
                return name not in _MAY_BE_PARTIAL or not read_json_file(folder / name).get("stopped")
            except _UNREADABLE:
                return False
    return False


def _rollout_progress(folder: Path) -> _Progress:
    """The progress of a run that plays episodes, by its journal and its report."""
    step = right = judged = total = None
    journal = folder / "journal" / "records.ndjson"
    if journal.is_file():
        lines, right, wrong = _count_marks(journal, b"\n", b'"right": true', b'"right": false')
        step, judged = lines, right + wrong
    try:
        settings = run_settings(folder)
        samples = settings.get("samples", 1)
        total = None if "replays" in settings else int(settings["questions"]) * int(samples)
    except _UNREADABLE:
        pass
    try:
        figure = read_json_file(folder / "report.json")["figures"]["em"]["all"]
        return _Progress(step, total, float(figure["value"]), int(figure["episodes"]))
    except _UNREADABLE:
        return _Progress(step, total, right / judged if right is not None and judged else None, judged)


def _training_progress(folder: Path) -> _Progress:
    """The progress of a training by its metrics, records and configuration; EM is that of its last
    validation."""
    step = em = validated_step = None
    for file in sorted(folder.glob("metrics*.jsonl"), key=_mtime):
        try:
            with file.open("rb") as lines:
                for line in limited_lines(lines, 1 << 20):
                    content = read_json_line(line)
                    step = int(content["step"])
                    values = [float(v) for k, v in content["data"].items() if _VALIDATION_EM.fullmatch(k)]
                    if values:
                        em, validated_step = fmean(values), step
        except _UNREADABLE:
            continue
    names = [_STEP_FILE.match(file.name) for file in folder.glob("trajectories/train/*")]
    steps = [int(name[1]) for name in names if name]
    step = max([*steps, *([] if step is None else [step])], default=None)
    n = None
    if validated_step is not None:
        files = folder.glob(f"trajectories/val/step_{validated_step:06d}-*.jsonl")
        n = sum(_count_marks(file, b"\n")[0] for file in files) or None
    total = None
    try:
        total = read_yaml(folder / _CONFIG)["trainer"].get("total_training_steps")
    except (YamlError, *_UNREADABLE):
        pass
    return _Progress(step, total if isinstance(total, int) else None, em, n)


def _count_marks(file: Path, *marks: bytes) -> list[int]:
    """Counts each mark in a file, as far as it can be read. No text in JSON has a mark with
    quotation marks, which it would have to escape."""
    counts = [0] * len(marks)
    tail = b""  # of what was read before, in which a mark may begin
    longest = max(map(len, marks)) - 1
    try:
        with file.open("rb") as content:
            while data := content.read(1 << 20):
                for i, mark in enumerate(marks):
                    begin = tail[len(tail) - len(mark) + 1 :] if len(mark) > 1 else b""
                    counts[i] += (begin + data).count(mark)
                tail = (tail + data)[-longest:] if longest else b""
    except OSError:
        pass
    return counts


def _file_times(folder: Path) -> Iterator[float]:
    """Yields the times at which the files of a run were written."""
    for path in (folder, folder / "journal", *folder.glob("trajectories/*"), folder / "checkpoints"):
        try:
            with os.scandir(path) as entries:
                yield from (entry.stat().st_mtime for entry in entries if entry.is_file())
        except OSError:
            continue


def _mtime(path: Path) -> float:
    """The time at which a file was written; 0 if it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _locked_inodes() -> frozenset[int]:
    """The inodes of locked files; empty where the system does not list them (it is Linux's list)."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    matches = (re.search(r" [0-9a-f]+:[0-9a-f]+:(\d+) ", line) for line in lines if "FLOCK" in line)
    return frozenset(int(match[1]) for match in matches if match)
