"""Runs the steps of a benchmark as processes of their own, and measures each from outside.

Wall and processor seconds and the peak of resident memory are those of the step alone, whatever the benchmark
itself has in memory; a step can also run under a limit of memory (memory_limit.py). A step ends with the
benchmark that has started it. It is read by other benchmarks, and has no command line. Linux only.
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
class Measured:
    """One step: its name, wall and processor seconds, peak resident MB."""

    name: str
    wall: float
    cpu: float
    peak: float

    def row(self) -> list[str]:
        """The cells of a table."""
        return [self.name, f"{self.wall:.1f}", f"{self.cpu:.1f}", f"{self.peak:.0f}"]


def ending_with(parent: int) -> Callable[[], None]:
    """For `preexec_fn`: Linux ends the new process when `parent`, which starts it, has ended."""

    def ask() -> None:
        if sys.platform == "linux":
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def measure(name: str, *command: object) -> Measured:
    """Run a command and measure it."""
    print(f"... {name}", file=sys.stderr, flush=True)
    began = time.perf_counter()
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
        process.wait()  # so that its seconds count among those of this process's children
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{name}: exit status {process.returncode}")
    wall = time.perf_counter() - began
    return Measured(name, wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def limited(limit_gb: float, *command: object) -> dict:
    """What a command prints as JSON, run under a limit of memory in GiB; with the group's peak."""
    ends = ending_with(os.getpid())
    with memory_limit(int(limit_gb * 2**30)) as limit:
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: (limit.enter(), ends()),
        )
        if done.returncode != 0:
            raise SystemExit(f"error: {' '.join(map(str, command[-3:]))}: exit status {done.returncode}")
        figures = json.loads(done.stdout.splitlines()[-1])
        return figures | {"limited": limit.folder is not None, "peak with page cache": limit.peak}


def processor_seconds(pid: int) -> float:
    """Processor seconds that a process has used so far, user and system."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def spent_by_children() -> float:
    """The processor seconds of the commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
