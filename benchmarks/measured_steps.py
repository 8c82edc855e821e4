"""Runs the steps of a benchmark as separate processes, and measures each from outside.

The wall and processor seconds and the peak resident memory are those of the step alone, independent of the
memory of the benchmark. A step can also run under a limit of memory (memory_limit.py), and it ends when the
benchmark that started it ends. Other benchmarks import this module; it has no command line. Linux only.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.memory_limit import memory_limit

ROOT = Path(__file__).resolve().parents[1]
_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1


@dataclass(frozen=True)
class MeasuredStep:
    """The measurement of a step."""

    name: str
    #: Seconds by the clock.
    wall: float
    #: Processor seconds.
    cpu: float
    #: Peak resident memory in MB.
    peak: float

    def row(self) -> list[str]:
        """Return the cells of its row in a table."""
        return [self.name, f"{self.wall:.1f}", f"{self.cpu:.1f}", f"{self.peak:.0f}"]


def ending_with(parent: int) -> Callable[[], None]:
    """Return a `preexec_fn` with which Linux ends the new process when its `parent` ends."""

    def request_signal() -> None:
        if sys.platform == "linux":
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return request_signal


def measure(name: str, *command: object) -> MeasuredStep:
    """Run a script of this Python with its arguments, and measure it. Raises SystemExit if it fails."""
    print(f"... {name}", file=sys.stderr, flush=True)
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        preexec_fn=ending_with(os.getpid()),
    )
    try:
        _, status, used = os.wait4(process.pid, 0)
    except BaseException:
        process.terminate()
        process.wait()  # its seconds then count among those of this process's children
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"error: {name}: exit status {process.returncode}; see above")
    wall = time.perf_counter() - started
    return MeasuredStep(name, wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def limited(limit_gb: float, *command: object) -> dict:
    """Run a script under a limit of memory in GiB, and return the JSON object in its last line of output.

    Two keys are added: `limited` says whether the limit was in force, and `peak with page cache` has the most
    bytes that were used under it (None if that is not known). Raises SystemExit if the script fails.
    """
    end_with_parent = ending_with(os.getpid())
    with memory_limit(int(limit_gb * 2**30)) as limit:
        finished = subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: (limit.enter(), end_with_parent()),
        )
        if status := finished.returncode:
            raise SystemExit(f"error: {' '.join(map(str, command[-3:]))}: exit status {status}; see above")
        figures = json.loads(finished.stdout.splitlines()[-1])
        return figures | {"limited": limit.folder is not None, "peak with page cache": limit.peak}


def processor_seconds(pid: int) -> float:
    """Return the processor seconds, user and system, that a process has used so far."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def spent_by_children() -> float:
    """Return the processor seconds of this process's finished children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
