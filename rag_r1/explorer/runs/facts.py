"""What the folder of a run says about it: kind, state, steps, figures, and the command that continues it.

Only the folder's layout is read: `settings.yaml` (rag_r1/options/settings_file.py), the journal
(rag_r1/runs/folder.py), reports, veRL's metrics and configuration, the names of record files. Nothing is
asked of a process, but the system's list of file locks says which journals and stages are held by one.

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
from typing import Any

from rag_r1.explorer.sources import NOT_ENTERED, run_settings
from rag_r1.io.bounded_json import limited_lines, read_json_file, read_json_line
from rag_r1.io.bounded_yaml import YamlError, read_yaml
from rag_r1.options.settings_file import SETTINGS
from rag_r1.training.guard.attempts import SUPERVISOR_LOCK

_CONFIG = Path("hydra", ".hydra", "config.yaml")
#: Files that a command writes when it has its result.
_RESULTS = (
    *("report.json", "summary.json", "search_card.json", "results.json", "finished", "model"),
    *("data_summary.json", "sft_summary.json", "corpus.json", "data_card.json"),  # data, documents, questions
)
#: Those of them that are also written when a run stops; `stopped` says so.
_MAY_BE_PARTIAL = ("summary.json", "data_card.json")
_COMMAND = re.compile(r"# rag-r1 ([a-z][a-z-]*(?: [a-z][a-z-]*)?) ")
_BEGIN = re.compile(r"# Relative paths start at (.+)")
_STEP_FILE = re.compile(r"step_(\d+)-\d+\.jsonl(?:\.gz)?")
_VALIDATION_EM = re.compile(r"val-(?:core|aux)/.+/em/mean@\d+")
_QUIET_S = 600.0
_WRONG_FILE = (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError)


@dataclass(frozen=True)
class RunFacts:
    """One run. `step` of `steps`: of a training, or the episodes of another run; `em` over `n` judged
    episodes; `age_s`: seconds since a file was written; `command`: goes on with a run that has stopped."""

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


def runs_below(top: Path) -> list[RunFacts]:
    """The runs in a folder and below it, by name. Raises OSError if it is no folder."""
    next(os.scandir(top), None)
    inodes = _locked_inodes()
    return [_facts(top, folder, inodes) for folder in sorted(_run_folders(top.resolve()))]


def _run_folders(top: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(top):
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "global_step_")) and name not in {*NOT_ENTERED, "journal"}
        ]
        folder = Path(root)
        marks = SETTINGS in names or (folder / _CONFIG).is_file() or (folder / "journal").is_dir()
        if marks or (folder / "trajectories").is_dir():
            yield folder
        folders[:] = [name for name in folders if name != "trajectories"]


def _facts(top: Path, folder: Path, locked_inodes: frozenset[int]) -> RunFacts:
    kind, begun_in = _settings_of(folder)
    journal = folder / "journal"
    is_training = kind == "train" or (folder / "trajectories" / "train").is_dir()
    newest = max(_file_times(folder), default=0.0)
    if is_training:
        step, steps, em, n = _training_progress(folder)
    else:
        step, steps, em, n = _rollout_progress(folder)
    supervised = folder / SUPERVISOR_LOCK
    paths = (folder, folder / "lock", journal, journal / "lock", folder / "checkpoints" / "lock", supervised)
    if any(_inode(path) in locked_inodes for path in paths):
        state = "running"
    elif _is_finished(folder) or _is_complete(folder, is_training, step, steps):
        state = "finished"
    else:
        # Of a supervised training the lock says it all.
        is_fresh = time.time() - newest < _QUIET_S and not supervised.exists()
        state = "running" if is_fresh else "stopped"
    return RunFacts(
        name=folder.relative_to(top.resolve()).as_posix() if folder != top.resolve() else folder.name,
        path=str(folder),
        kind=kind or ("train" if is_training else "rollouts"),
        state=state,
        step=step,
        steps=steps,
        em=em,
        n=n,
        age_s=max(time.time() - newest, 0.0),
        command=_resume_command(folder, begun_in) if state == "stopped" else None,
    )


def _settings_of(folder: Path) -> tuple[str | None, Path | None]:
    """The command that wrote a folder, and the working directory of that command."""
    for path in (folder / SETTINGS, folder / "checkpoints" / SETTINGS):
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                first, second = file.readline(4096), file.readline(4096)
        except OSError:
            continue
        if command := _COMMAND.match(first):
            begun = _BEGIN.match(second)
            return command[1], Path(begun[1]) if begun else None
    command = run_settings(folder).get("command")
    return (None if command is None else str(command)), None


def _resume_command(folder: Path, begun_in: Path | None) -> str | None:
    """The command that continues a run: its own, or that of the run around it, such as of its stages."""
    for run in (folder, folder.parent):
        kind, where = _settings_of(run)
        if kind is None or not (run / SETTINGS).is_file():
            continue
        where = where or begun_in
        go = f"cd {shlex.quote(str(where))} && " if where is not None and where.is_absolute() else ""
        return f"{go}rag-r1 {kind} {shlex.quote(f'@{run / SETTINGS}')}"
    return None


def _is_complete(folder: Path, is_training: bool, step: int | None, steps: int | None) -> bool:
    """Whether all steps of a training, or all episodes and their report, are there, whatever the times of the
    files: a copy of a folder has others."""
    has_all_steps = step is not None and steps is not None and step >= steps > 0
    return has_all_steps and (is_training or (folder / "report.json").is_file())


def _is_finished(folder: Path) -> bool:
    if (folder / "done.json").is_file():
        return True
    records = _time(folder / "journal" / "records.ndjson")
    for name in _RESULTS:
        if (time := _time(folder / name)) and time >= records:
            try:
                return name not in _MAY_BE_PARTIAL or not read_json_file(folder / name).get("stopped")
            except _WRONG_FILE:
                return False
    return False


def _rollout_progress(folder: Path) -> tuple[int | None, int | None, float | None, int | None]:
    """Episodes, all of them, EM, and how many were judged."""
    step = right = judged = None
    journal = folder / "journal" / "records.ndjson"
    if journal.is_file():
        lines, right, wrong = _count_marks(journal, b"\n", b'"right": true', b'"right": false')
        step, judged = lines, right + wrong
    total = None
    try:
        settings = run_settings(folder)
        samples = settings.get("samples", 1)
        total = None if "replays" in settings else int(settings["questions"]) * int(samples)
    except _WRONG_FILE:
        pass
    try:
        figure = read_json_file(folder / "report.json")["figures"]["em"]["all"]
        return step, total, float(figure["value"]), int(figure["episodes"])
    except _WRONG_FILE:
        return step, total, right / judged if right is not None and judged else None, judged


def _training_progress(folder: Path) -> tuple[int | None, int | None, float | None, int | None]:
    """The last step, all steps, EM of the last validation, and its number of questions."""
    step = em = validated = None
    for file in sorted(folder.glob("metrics*.jsonl"), key=_time):
        try:
            with file.open("rb") as lines:
                for line in limited_lines(lines, 1 << 20):
                    content = read_json_line(line)
                    step = int(content["step"])
                    values = [float(v) for k, v in content["data"].items() if _VALIDATION_EM.fullmatch(k)]
                    if values:
                        em, validated = sum(values) / len(values), step
        except _WRONG_FILE:
            continue
    names = [_STEP_FILE.match(file.name) for file in folder.glob("trajectories/train/*")]
    steps = [int(name[1]) for name in names if name]
    step = max([*steps, *([] if step is None else [step])], default=None)
    n = None
    if validated is not None:
        files = folder.glob(f"trajectories/val/step_{validated:06d}-*.jsonl")
        n = sum(_count_marks(file, b"\n")[0] for file in files) or None
    total: Any = None
    try:
        total = read_yaml(folder / _CONFIG)["trainer"].get("total_training_steps")
    except (YamlError, *_WRONG_FILE):
        pass
    return step, total if isinstance(total, int) else None, em, n


def _count_marks(file: Path, *marks: bytes) -> list[int]:
    """How often each mark stands in a file. In JSON a text cannot hold a mark with quotation marks."""
    counts, tail = [0] * len(marks), b""
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
    """When the files of a run were written."""
    for path in (folder, folder / "journal", *folder.glob("trajectories/*"), folder / "checkpoints"):
        try:
            with os.scandir(path) as entries:
                yield from (entry.stat().st_mtime for entry in entries if entry.is_file())
        except OSError:
            continue


def _time(path: Path) -> float:
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
