"""The worker process of the sandbox, which runs one job after another within limits.

It is started as a program by its path, in Python's isolated mode, and imports only the standard library until
a job needs more. Each message is JSON, preceded by its length in 8 bytes. The kernel kills the process if a
job exceeds its processor time. If a job exceeds its memory, the answer says so and the process ends.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from importlib import import_module
from typing import Any, BinaryIO

#: A process whose memory has ever exceeded this many bytes is not reused.
_REUSABLE_BYTES = 512 << 20


def main() -> None:
    """Run jobs until the parent closes the pipe or ends, or a job requires a new process."""
    _exit_with_parent(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a job prints must not mix with answers
    requests = os.fdopen(os.dup(0), "rb")
    sys.path[:] = _read(requests)
    while (request := _read(requests)) is not None:
        answer, exits = _run_job(request)
        data = json.dumps([answer, exits], ensure_ascii=False).encode("utf-8", "surrogatepass")
        answers.write(len(data).to_bytes(8, "big") + data)
        answers.flush()
        if exits:
            return


def _run_job(request: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the answer to a request, `{"value": ...}` or `{"error": [kind, message]}`, and whether this
    process exits after sending it."""
    _set_limits(request["cpu_s"], request["memory"])
    try:
        module, _, function = request["job"].partition(":")
        answer = {"value": getattr(import_module(module), function)(*request["arguments"])}
    except MemoryError:
        _set_limits(request["cpu_s"], None)  # for writing the answer
        return {"error": ["MemoryError", ""]}, True
    except Exception as error:
        kind = "OSError" if isinstance(error, OSError) else type(error).__name__
        answer = {"error": [kind, str(error)[:2000]]}
    _set_limits(request["cpu_s"], None)  # for writing the answer
    return answer, _peak_bytes() > _REUSABLE_BYTES


def _read(stream: BinaryIO) -> Any:
    """Return the next message; None at the end of the stream."""
    header = stream.read(8)
    return json.loads(stream.read(int.from_bytes(header, "big"))) if len(header) == 8 else None


def _set_limits(cpu_s: float, memory_bytes: int | None) -> None:
    """Allow this process `cpu_s` more seconds of processor time, and `memory_bytes` of address space in total
    (None for no limit)."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)  # its signal kills the process in any state
    _set_limit(resource.RLIMIT_CPU, int(time.process_time() + cpu_s) + 2)  # in case the signal is blocked
    _set_limit(resource.RLIMIT_AS, resource.RLIM_INFINITY if memory_bytes is None else memory_bytes)
    _set_limit(resource.RLIMIT_CORE, 0)


def _set_limit(kind: int, value: int) -> None:
    """Set the soft limit of a resource, as far as its hard limit allows."""
    hard_limit = resource.getrlimit(kind)[1]
    if hard_limit != resource.RLIM_INFINITY:
        value = hard_limit if value == resource.RLIM_INFINITY else min(value, hard_limit)
    resource.setrlimit(kind, (value, hard_limit))


def _peak_bytes() -> int:
    """Return the peak memory of this program in bytes. On Linux, getrusage is not used, since its figure
    includes the parent's memory."""
    try:
        with open("/proc/self/status", "rb") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith(b"VmHWM:"))
    except (OSError, StopIteration):  # this is not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _exit_with_parent(parent: int) -> None:
    """Make Linux kill this process when its parent ends, and exit if the parent has ended already. Ctrl-C is
    left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and closes the pipe
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit()


if __name__ == "__main__":
    main()
