"""Starts and stops the processes of a pipeline, including those that a killed invocation left behind.

A command either shares the terminal and the lock of the process that starts it (`run_child`), or runs in a
session of its own (`run_and_wait`). The processes of that session are ended if the command fails, or if the
pipeline fails or is interrupted by Ctrl-C or SIGTERM.

SIGKILL leaves no opportunity for that. So every process that a pipeline starts directly or indirectly,
including Ray's, inherits the variable `RAG_R1_PIPELINE`, whose value is the folder OUT. The next invocation
with the same OUT, which holds its lock, finds such processes in /proc and ends them by their ids. Otherwise
an orphaned training would write into the folder of a new one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil

from rag_r1.runs.errors import RunError
from rag_r1.system.child_processes import SAME_GROUP, SESSION, end, last_lines, start

#: The environment variable that marks the processes of a pipeline.
MARK = "RAG_R1_PIPELINE"
#: Seconds that processes have to end after a signal, before the next one is sent.
_END_S = 20.0


def mark_children(out: Path) -> None:
    """Mark all processes that this process starts from now on as belonging to OUT."""
    os.environ[MARK] = os.path.realpath(out)


def run_module(
    *arguments: object, log: Path | None = None, watch: Callable[[], None] | None = None, **environment: str
) -> None:
    """Run `python -m ARGUMENTS` to its end, with the further variables in `environment`. The first argument
    is the module. The other parameters and the errors are those of `run_and_wait`."""
    command = [sys.executable, "-m", *map(str, arguments)]
    run_and_wait(command, log=log, watch=watch, environment=environment, name=f"python -m {arguments[0]}")


def run_and_wait(
    command: Sequence[str],
    *,
    log: Path | None = None,
    watch: Callable[[], None] | None = None,
    environment: Mapping[str, str] | None = None,
    name: str | None = None,
) -> None:
    """Run a command to its end in a session of its own.

    - `log`: the file to which the command's output is appended; None to print it here
    - `watch`: called about twice a second
    - `environment`: variables that are added to those of this process
    - `name`: stands for the command in an error

    Raises RunError if the command cannot be started, or ends with another status than 0, OSError if the log
    cannot be written, and whatever `watch` raises.
    """
    name = name or " ".join(command[:4])
    sys.stdout.flush()
    with nullcontext() if log is None else log.open("ab") as output:
        try:
            process = start(command, output, {**os.environ, **(environment or {})})
        except OSError as error:
            raise RunError(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            _wait(process, 0.5, watch)
        finally:
            stop_session(process)
    if process.returncode:
        log_end = "" if log is None else f"; the end of {log}:\n{last_lines(log)}"
        raise RunError(
            f"{name} ended with status {process.returncode}: correct the cause, then give the pipeline's "
            f"command again, which resumes{log_end}"
        )


def _wait(process: subprocess.Popen, interval_s: float, is_over: Callable[[], object] | None) -> int | None:
    """Wait for a process to end, and return its exit status. `is_over`, if it is given, is called after every
    `interval_s` seconds; once it returns a true value, this returns None at once."""
    while True:
        try:
            return process.wait(interval_s)
        except subprocess.TimeoutExpired:
            if is_over is not None and is_over():
                return None


def run_child(command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run a training's command, and return its exit status. The process inherits the folder's lock, and is
    ended if an exception, such as that of Ctrl-C, interrupts the wait."""
    status = run_child_until(lambda: False, command, environment)
    assert status is not None  # it is never ended early
    return status


def run_child_until(
    is_over: Callable[[], bool], command: Sequence[str], environment: Mapping[str, str] | None = None
) -> int | None:
    """Run a command as `run_child` does, but end it as soon as `is_over`, which is called every second,
    returns True. Returns its exit status, or None if it was ended."""
    process = start(command, environment=environment, own_session=False, inherits_files=True)
    try:
        return _wait(process, 1.0, is_over)
    finally:
        end(process, SAME_GROUP)


def stop_session(process: subprocess.Popen) -> None:
    """Stop a process that leads a session, beginning with SIGINT, and the other processes of its group, also
    if it has failed. If it has ended with status 0, nothing is stopped."""
    if process.poll() != 0:
        end(process, SESSION)


def stop_leftovers(out: Path) -> int:
    """End the processes that an earlier invocation with the same OUT left behind, and return their number.
    Their files and ports are free afterwards. The caller must hold the lock of OUT. Raises RunError if a
    process does not end."""
    leftovers = running = find_leftovers(out)
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        for pid in find_leftovers(out):
            with suppress(ProcessLookupError):
                os.kill(pid, signal_number)
        deadline = time.monotonic() + _END_S
        while running := sorted(filter(_is_running, {*running, *find_leftovers(out)})):
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
    if running:
        ids = ", ".join(map(str, running))
        raise RunError(f"processes of an earlier run in {out} do not end: {ids}: end them, then start again")
    return len(leftovers)


def _is_running(pid: int) -> bool:
    """Return whether a process has not ended. One that is ending loses its environment first, and its locks
    and ports only after its memory, which takes a large training a good part of a second."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def find_leftovers(out: Path) -> list[int]:
    """Return the ids of all running processes with the mark of OUT, except this one, in ascending order.
    Links in the marked path are resolved. Returns [] if there is no /proc."""
    mark, target = f"{MARK}=/".encode(), os.path.realpath(os.fsencode(out))
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # A zombie, which has ended and is not waited for, has no environment.
            variables = (folder / "environ").read_bytes().split(b"\0")
            folders = (text[len(mark) - 1 :] for text in variables if text.startswith(mark))
            if target in map(os.path.realpath, folders) and int(folder.name) != os.getpid():
                pids.append(int(folder.name))
        except OSError:  # the process has ended meanwhile, or belongs to another user
            continue
    return sorted(pids)
