"""The worker process of the sandbox: runs one job after another, each within its limits.

It is run as a program, by its path and without the environment's settings for Python, so it imports only the
standard library until a job needs more. Messages are JSON, with their length in 8 bytes before them. The
kernel ends a job that exceeds its processor time, together with this process; a job that exceeds its memory
gets an answer, and the process ends after it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from importlib import import_module
from typing import Any, BinaryIO

#: A process that has ever held more than this many bytes is not used again.
_REUSABLE_BYTES = 512 << 20


def main() -> None:
    """Work until the parent closes the pipe, or ends."""
    _exit_with_parent(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of a job must not mix with answers
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
    """Returns the answer to a request, `{"value": ...}` or `{"error": [kind, message]}`, and whether this
    process exits after it."""
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
    """Returns the next message; None at the end."""
    header = stream.read(8)
    return json.loads(stream.read(int.from_bytes(header, "big"))) if len(header) == 8 else None


def _set_limits(cpu_s: float, memory_bytes: int | None) -> None:
    """Let this process use so many more seconds of processor time, and so many bytes of address space in all
    (None: no limit)."""
    import resource

    signal.setitimer(signal.ITIMER_PROF, cpu_s)  # its signal ends the process, whatever it is doing
    _set_limit(resource.RLIMIT_CPU, int(time.process_time() + cpu_s) + 2)  # should the signal be blocked
    _set_limit(resource.RLIMIT_AS, resource.RLIM_INFINITY if memory_bytes is None else memory_bytes)
    _set_limit(resource.RLIMIT_CORE, 0)


def _set_limit(kind: int, value: int) -> None:
    """Set the soft limit of a resource, as far as the hard one allows."""
    import resource

    hard_limit = resource.getrlimit(kind)[1]
    if hard_limit != resource.RLIM_INFINITY:
        value = hard_limit if value == resource.RLIM_INFINITY else min(value, hard_limit)
    resource.setrlimit(kind, (value, hard_limit))


def _peak_bytes() -> int:
    """Returns the most bytes that this program held. Not getrusage's figure, which on Linux includes the
    parent's."""
    try:
        with open("/proc/self/status", "rb") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith(b"VmHWM:"))
    except (OSError, StopIteration):  # not on Linux
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _exit_with_parent(parent: int) -> None:
    """Let the kernel end this process with its parent, and exit if that has ended already."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it closes the pipe
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit()


if __name__ == "__main__":
    main()
