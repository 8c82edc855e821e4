"""Starts, awaits and ends child processes.

`child_process` runs a server while a block runs. The server ends with the block, also after an error, Ctrl-C
or SIGTERM of this process. If this process is killed (SIGKILL), Linux ends the child (PR_SET_PDEATHSIG), so
that its port, its GPU memory and its main memory are free for the next invocation. `bind_to_parent` wraps a
command in the same way for other code that starts it.

`start` and `end` are for children that outlive a block, such as trainings. `end` sends the signals of an
`Ending`, followed by SIGKILL. `wait_until_ready` waits for a server, and `last_lines` returns the end of a
log for an error message. `exit_on_sigterm` lets SIGTERM end this process as an exception does, so that its
children end with it. child_environments.py chooses the environment variables of a child.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

#: A program that makes Linux send it SIGTERM when its parent ends, and then executes the command.
_ENDS_WITH_PARENT = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the command that started this server has ended")
os.execvp(sys.argv[2], sys.argv[2:])
"""
#: Exit status of a process that handles SIGTERM by ending.
TERMINATED = 143


def bind_to_parent(command: Sequence[str], folder: Path | str | None = None) -> list[str]:
    """Return the command, wrapped so that it ends when the thread or process that starts it ends.

    `folder` is the folder in which the command is started. A command whose program does not exist is returned
    unchanged, so that starting it fails.
    """
    path = os.path.join(folder or "", command[0]) if os.sep in command[0] else command[0]
    if shutil.which(path) is None:
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _ENDS_WITH_PARENT, str(os.getpid()), *command]


class NotReadyError(RuntimeError):
    """A server ended before it was ready, or was not ready in time; the message contains the end of its
    log."""


@dataclass(frozen=True)
class Ending:
    """How a child is ended. SIGKILL follows the signals."""

    #: The signals to send in turn, each with the seconds to wait for the child to end.
    signals: tuple[tuple[int, float], ...]
    #: Whether the signals are sent to all processes of the child's group instead of the child alone.
    asks_group: bool = False
    #: Whether SIGKILL is sent to the whole group, even if the child itself has ended.
    kills_group: bool = True


#: Ends a server, which ends its own workers.
SERVER = Ending(((signal.SIGTERM, 30.0),))
#: Ends a command in a session of its own, first with the signal of Ctrl-C.
SESSION = Ending(((signal.SIGINT, 20.0), (signal.SIGTERM, 10.0)), asks_group=True)
#: Ends a child in the group of this process.
SAME_GROUP = Ending(((signal.SIGINT, 60.0),), kills_group=False)


def start(
    command: Sequence[str],
    output: IO[Any] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    own_session: bool = True,
    inherits_files: bool = False,
) -> subprocess.Popen:
    """Start a command, by default in a session of its own.

    - `output`: the file that receives the command's output; None to print it here
    - `environment`: None for the environment of this process
    - `inherits_files`: whether the command keeps open files that are inheritable, such as a folder's lock

    Raises OSError if the command cannot be started.
    """
    return subprocess.Popen(
        command,
        env=environment,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        start_new_session=own_session,
        close_fds=not inherits_files,
    )


@contextmanager
def child_process(
    arguments: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen]:
    """Run Python with these arguments, in a process group of its own, while the block runs.

    `log` receives the output. Call this from the main thread: in any other thread SIGTERM of this process is
    not handled, and the child ends with that thread. Raises OSError if the log cannot be written.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output, exit_on_sigterm():
        process = start(bind_to_parent([sys.executable, *arguments]), output, environment)
        try:
            yield process
        finally:
            end(process, SERVER)


def end(process: subprocess.Popen, ending: Ending) -> None:
    """End a child and wait for its end. With `kills_group`, also kill all that remains of its process
    group."""
    for signal_number, wait_s in ending.signals:
        if _has_exited(process):
            break
        # A shell starts background commands with SIGINT ignored, and child processes inherit that.
        if signal.getsignal(signal_number) is signal.SIG_IGN:
            signal_number = signal.SIGTERM
        os.kill(-process.pid if ending.asks_group else process.pid, signal_number)
        deadline = time.monotonic() + wait_s
        while not _has_exited(process) and time.monotonic() < deadline:
            time.sleep(0.05)
    if ending.kills_group:
        # The group's id is not reused while the group has processes, or while the child is not waited for.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _has_exited(process: subprocess.Popen) -> bool:
    """Return whether a child has ended. It stays a zombie, which keeps its process id, until it is waited
    for."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait_until_ready(
    process: subprocess.Popen,
    is_ready: Callable[[], bool],
    limit_s: float,
    *,
    name: str,
    log: Path,
    every_s: float = 0.2,
) -> None:
    """Wait until `is_ready`, which is called every `every_s` seconds, returns True. Raises NotReadyError,
    with the server's `name` and the end of its `log`, if the server ends before, or is not ready after
    `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while process.poll() is None:
        if is_ready():
            return
        if time.monotonic() > deadline:
            break
        time.sleep(every_s)
    status = process.returncode
    reason = f"was not ready after {limit_s:g} s" if status is None else f"ended with status {status}"
    raise NotReadyError(f"{name} {reason}; the end of {log}:\n{last_lines(log)}")


def last_lines(log: Path | str, count: int = 25) -> str:
    """Return the last `count` lines of a log, which is the path of a file or a text. Raises OSError if the
    file cannot be read."""
    text = log if isinstance(log, str) else log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.strip().splitlines()[-count:])


def free_port() -> int:
    """Return a port of the loopback interface on which no server listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Make SIGTERM raise SystemExit (143) while the block runs, so that resources are released.

    A handler that was set before is called first, and may raise something else. Has no effect outside the
    main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: Any) -> None:
        if callable(previous):
            previous(number, frame)
        sys.exit(TERMINATED)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
