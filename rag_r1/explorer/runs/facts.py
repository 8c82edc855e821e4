"""Finds the runs below a folder: kind, state, steps, figures, and the command that continues each.

Everything is read from files: `settings.yaml` (rag_r1/options/settings_file.py), the journal
(rag_r1/runs/folder.py), reports, veRL's metrics and configuration, and the names and lines of record files.
The system's list of file locks (file_locks.py) tells which folders are locked by a process. A run has the
first of these states that applies:

    running    a process has locked the folder
    finished   there is a `done.json`, or a result (`_RESULTS`) that is not older than the journal and does
               not say that the run was stopped early; or all steps of a training are done; or all episodes
               of another run are played and there is a report
    running    its files were written to in the last ten minutes, and it has no supervisor
    stopped    none of these is the case
"""

from __future__ import annotations

import math
import os
import re
import shlex
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from rag_r1.explorer.record_files.lines import START, whole_lines
from rag_r1.explorer.record_files.sources import NOT_ENTERED, run_settings
from rag_r1.explorer.runs.file_locks import FileKey, file_key, locked_files
from rag_r1.io.bounded_json import read_json_file
from rag_r1.io.bounded_yaml import read_yaml
from rag_r1.io.ordinary_files import open_ordinary
from rag_r1.options.settings_file import SETTINGS
from rag_r1.runs.rollout_metrics import logger_files
from rag_r1.runs.steps import DONE
from rag_r1.training.guard.attempts import SUPERVISOR_LOCK
from rag_r1.training.metrics_files import MetricsFile

#: Prefixes of the names of folders that are not searched: hidden ones and checkpoints.
_SKIPPED_PREFIXES = (".", "global_step_")
_CONFIG = Path("hydra", ".hydra", "config.yaml")
#: Files that commands write into the folder of a run when they have its result.
_RESULTS = (
    *("report.json", "summary.json", "search_card.json", "results.json", "finished", "model"),
    *("data_summary.json", "sft_summary.json", "corpus.json", "data_card.json"),  # data, documents, questions
)
#: Those that are also written when a run is stopped early. Their key `stopped` then has the reason.
_MAY_BE_PARTIAL = ("summary.json", "data_card.json")
#: The first two lines of `settings.yaml`.
_COMMAND = re.compile(r"# rag-r1 ([a-z][a-z-]*(?: [a-z][a-z-]*)?) ")
_DIRECTORY = re.compile(r"# Relative paths start at (.+)")
#: Names of record files, and of veRL's metrics with the exact match of a validation.
_STEP_FILE = re.compile(r"step_(\d+)-\d+\.jsonl(?:\.gz)?")
_VALIDATION_EM = re.compile(r"val-(?:core|aux)/.+/em/mean@\d+")
#: A run without a lock counts as running for this number of seconds after its last write.
_QUIET_S = 600.0
#: Errors that mean that a file is missing, or does not have the expected contents (YamlError is a
#: ValueError).
_UNREADABLE = (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError, OverflowError)


@dataclass(frozen=True)
class RunFacts:
    """What is known about a run; unknown values are None."""

    name: str
    path: str
    #: The command that has made it, such as `eval`; `train` or `rollouts` if it is not known.
    kind: str
    state: Literal["running", "finished", "stopped"]
    #: Number of steps that a training has done, or of episodes that another run has played, and the total.
    step: int | None
    steps: int | None
    #: Exact match, and the number of judged episodes. EM is unknown for an evaluation in progress that
    #: judges by another reward term.
    em: float | None
    n: int | None
    #: Seconds since a file was last written.
    age_s: float
    #: The command that resumes a stopped run.
    command: str | None


class _Progress(NamedTuple):
    """The progress of a run, in the fields of RunFacts with these names."""

    step: int | None
    steps: int | None
    em: float | None
    n: int | None


def runs_below(top: Path) -> list[RunFacts]:
    """Find the runs in a folder and below it, sorted by path. Raises OSError if it cannot be read."""
    os.scandir(top).close()  # os.walk ignores errors
    top, locked = top.resolve(), locked_files()
    return [_facts(top, folder, locked) for folder in sorted(_run_folders(top))]


def _run_folders(top: Path) -> Iterator[Path]:
    """Yield the folders of runs, which have settings, a configuration, a journal or trajectories."""
    skipped = {*NOT_ENTERED, "journal"}
    for root, folders, names in os.walk(top):
        folders[:] = [
            name for name in folders if name not in skipped and not name.startswith(_SKIPPED_PREFIXES)
        ]
        folder = Path(root)
        is_run = SETTINGS in names or (folder / _CONFIG).is_file() or (folder / "journal").is_dir()
        if is_run or (folder / "trajectories").is_dir():
            yield folder
        folders[:] = [name for name in folders if name != "trajectories"]


def _facts(top: Path, folder: Path, locked: frozenset[FileKey]) -> RunFacts:
    """Collect the facts of the run in `folder`, whose name is its path below `top`."""
    kind, working_directory = _settings_of(folder)
    is_training = kind == "train" or (folder / "trajectories" / "train").is_dir()
    newest = max(_file_times(folder), default=0.0)
    progress = _training_progress(folder) if is_training else _rollout_progress(folder)
    if progress.em is not None and not math.isfinite(progress.em):
        progress = progress._replace(em=None)  # JSON has no NaN
    if _is_locked(folder, locked):
        state = "running"
    elif _has_result(folder) or _is_complete(folder, progress, is_training=is_training):
        state = "finished"
    else:
        # The lock of a supervised training is free, so it has stopped even if its files are new.
        is_fresh = time.time() - newest < _QUIET_S and not (folder / SUPERVISOR_LOCK).exists()
        state = "running" if is_fresh else "stopped"
    return RunFacts(
        name=folder.relative_to(top).as_posix() if folder != top else folder.name,
        path=str(folder),
        kind=kind or ("train" if is_training else "rollouts"),
        state=state,
        **progress._asdict(),
        age_s=max(time.time() - newest, 0.0),
        command=_resume_command(folder, working_directory) if state == "stopped" else None,
    )


def _is_locked(folder: Path, locked: frozenset[FileKey]) -> bool:
    """Return whether a process holds one of the locks that runs take in their folders."""
    names = ("", "lock", "journal", "journal/lock", "checkpoints/lock", SUPERVISOR_LOCK)
    return any(file_key(folder / name) in locked for name in names)


def _settings_of(folder: Path) -> tuple[str | None, Path | None]:
    """Return the kind of a run, which is the command that has written its folder, and the command's working
    directory; None for what is not known."""
    for path in (folder / SETTINGS, folder / "checkpoints" / SETTINGS):
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                first, second = file.readline(4096), file.readline(4096)
        except OSError:
            continue
        if command := _COMMAND.match(first):
            directory = _DIRECTORY.match(second)
            return command[1], Path(directory[1]) if directory else None
    command = run_settings(folder).get("command")
    return (None if command is None else str(command)), None


def _resume_command(folder: Path, working_directory: Path | None) -> str | None:
    """Return the command that resumes a run: its own, or that of the run in the folder around it."""
    for run in (folder, folder.parent):
        kind, directory = _settings_of(run)
        if kind is None or not (run / SETTINGS).is_file():
            continue
        directory = directory or working_directory
        is_absolute = directory is not None and directory.is_absolute()
        cd = f"cd {shlex.quote(str(directory))} && " if is_absolute else ""
        return f"{cd}rag-r1 {kind} {shlex.quote(f'@{run / SETTINGS}')}"
    return None


def _is_complete(folder: Path, progress: _Progress, *, is_training: bool) -> bool:
    """Return whether a training has done all its steps, or another run has all its episodes and its report.

    This does not depend on the times of files, which differ in a folder that was copied.
    """
    step, steps = progress.step, progress.steps
    has_all_steps = step is not None and steps is not None and step >= steps > 0
    return has_all_steps and (is_training or (folder / "report.json").is_file())


def _has_result(folder: Path) -> bool:
    """Return whether there is a complete result that is not older than the records."""
    if (folder / DONE).is_file():
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
    """Read the progress of a run that plays episodes from its journal and its report."""
    step = em = judged = total = None
    settings = run_settings(folder)
    journal = folder / "journal" / "records.ndjson"
    if journal.is_file():
        lines, right, wrong = _count_in_file(journal, b"\n", b'"right": true', b'"right": false')
        step, judged = lines, right + wrong
        em = right / judged if judged and settings.get("term", "em") == "em" else None
    with suppress(*_UNREADABLE):
        samples = settings.get("samples", 1)
        total = None if "replays" in settings else int(settings["questions"]) * int(samples)
    try:
        figure = read_json_file(folder / "report.json")["figures"]["em"]["all"]
        return _Progress(step, total, float(figure["value"]), int(figure["episodes"]))
    except _UNREADABLE:
        return _Progress(step, total, em, judged)


def _training_progress(folder: Path) -> _Progress:
    """Read the progress of a training from its metrics, records and configuration.

    EM is the exact match in the last validation.
    """
    logged_step, em, validated_step = _logged_progress(folder)
    matches = (_STEP_FILE.match(file.name) for file in folder.glob("trajectories/train/*"))
    steps = [int(match[1]) for match in matches if match]
    if logged_step is not None:
        steps.append(logged_step)
    step = max(steps, default=None)
    n = None
    if validated_step is not None:
        files = folder.glob(f"trajectories/val/step_{validated_step:06d}-*.jsonl*")
        with suppress(OSError, zlib.error):
            n = sum(1 for file in files for _ in whole_lines(file, START)) or None
    total = None
    with suppress(*_UNREADABLE):
        total = read_yaml(folder / _CONFIG)["trainer"].get("total_training_steps")
    return _Progress(step, total if isinstance(total, int) else None, em, n)


def _logged_progress(folder: Path) -> tuple[int | None, float | None, int | None]:
    """Read (last step, EM of the last validation, step of that validation) from veRL's metrics. Files that
    cannot be read are skipped."""
    step = em = validated_step = None
    for file in filter(Path.is_file, logger_files(folder)):
        with suppress(OSError):
            for step, metrics in MetricsFile(file).new_lines():
                with suppress(*_UNREADABLE):
                    if ems := [float(metrics[name]) for name in metrics if _VALIDATION_EM.fullmatch(name)]:
                        em, validated_step = fmean(ems), step
    return step, em, validated_step


def _count_in_file(file: Path, *patterns: bytes) -> list[int]:
    """Count each pattern in a file, as far as the file can be read.

    A pattern with quotation marks is not found within the texts of a JSON file, where they are escaped.
    """
    counts = [0] * len(patterns)
    tail = b""  # the end of the data before, in which an occurrence may begin
    tail_bytes = max(map(len, patterns)) - 1
    with suppress(OSError), open_ordinary(file) as content:
        while chunk := content.read(1 << 20):
            data = tail + chunk
            for index, pattern in enumerate(patterns):
                counts[index] += data.count(pattern) - tail.count(pattern)
            tail = data[max(0, len(data) - tail_bytes) :]
    return counts


def _file_times(folder: Path) -> Iterator[float]:
    """Yield the times at which the files of a run were last written."""
    for path in (folder, folder / "journal", *folder.glob("trajectories/*"), folder / "checkpoints"):
        try:
            with os.scandir(path) as entries:
                yield from (entry.stat().st_mtime for entry in entries if entry.is_file())
        except OSError:
            continue


def _mtime(path: Path) -> float:
    """Return the time at which a file was last written; 0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
