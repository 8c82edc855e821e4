"""A pool of sandbox workers that run jobs on untrusted data within limits.

    pool = WorkerPool()
    pool.call("rag_r1.sandbox.documents:read", [path, ".pdf"], JobLimits(cpu_s=10))

A job is a function of a module. Its arguments and its result are JSON, and pass through the pipes of a worker
process (worker.py). `call` blocks and may be used in any thread; coroutines use it in a thread. If no worker
is free, a new one is started in about 30 ms, and is reused afterwards. A worker has no access to this
process's environment, which may contain keys, nor to its standard output. Linux kills it when this process
ends for any reason. After a fork, the child process starts without workers.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

_PROGRAM = str(Path(__file__).with_name("worker.py"))
#: Variables without which Python may not start, or decodes file names differently.
_PASSED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
#: Seconds to wait for a worker, for a slow disk, in addition to four times its processor time
#: (`_Worker.answer`).
_WAIT_S = 30.0


@dataclass(frozen=True)
class JobLimits:
    """The limits of one job."""

    #: Processor time in seconds.
    cpu_s: float
    #: Address space of the worker.
    memory_bytes: int = 1 << 30
    #: Size of the answer as JSON.
    answer_bytes: int = 128 << 20


class LimitError(Exception):
    """A limit ended a job, or the job ended its worker. The message is a sentence about the job that begins
    with `it` or `its`."""


class JobError(Exception):
    """A job raised an exception, whose message this error has. `kind` is the name of the exception's class
    (`OSError` for all its subclasses)."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


class WorkerPool:
    """At most `max_workers` workers (by default as many as there are cores, up to 4). A call waits while all
    of them are busy."""

    def __init__(self, max_workers: int | None = None):
        self._max_workers = max_workers or max(1, min(4, os.cpu_count() or 1))
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        """Forget all workers."""
        self._slots = threading.BoundedSemaphore(self._max_workers)
        self._idle: list[_Worker] = []

    def call(self, job: str, arguments: Sequence[Any], limits: JobLimits) -> Any:
        """Return the result of the job `module:function`. Raises LimitError and JobError, TypeError for
        arguments that JSON cannot represent, OSError if no worker can be started, and RuntimeError if none
        can be started because the interpreter shuts down."""
        return self.start(job, arguments, limits).result()

    def start(self, job: str, arguments: Sequence[Any], limits: JobLimits) -> JobHandle:
        """Start a job as soon as a worker is free.

        `result()` or `cancel()` of the returned handle must be called. Until then, the same thread must use
        `try_start` for further jobs, since `start` could wait for a worker that the thread itself holds.
        Raises TypeError, OSError and RuntimeError like `call`.
        """
        self._slots.acquire()
        return self._begin(job, arguments, limits)

    def try_start(self, job: str, arguments: Sequence[Any], limits: JobLimits) -> JobHandle | None:
        """Start a job like `start`, or return None if all workers are busy."""
        return self._begin(job, arguments, limits) if self._slots.acquire(blocking=False) else None

    def close(self) -> None:
        """End all idle workers. A later call starts a new one."""
        while (worker := self._pop_idle()) is not None:
            worker.end()

    def _begin(self, job: str, arguments: Sequence[Any], limits: JobLimits) -> JobHandle:
        """Send a job to a worker. The caller has acquired a slot."""
        slots = self._slots
        worker = None
        try:
            worker = self._take_worker()
            with suppress(BrokenPipeError):  # `result` reports why the worker has ended
                bounds = {"cpu_s": limits.cpu_s, "memory": limits.memory_bytes}  # the worker sets them itself
                worker.send({"job": job, "arguments": arguments, **bounds})
        except BaseException:  # includes Ctrl-C, after which half a message may be in the pipe
            if worker is not None:
                worker.end()
            slots.release()
            raise
        return JobHandle(self, slots, worker, limits)

    def _take_worker(self) -> _Worker:
        """Return an idle worker, or a new one."""
        while (worker := self._pop_idle()) is not None:
            if worker.is_alive():
                return worker
            worker.end()
        # Linux kills a worker when the thread that started it ends, so that thread must live on.
        return _starter.submit(_Worker).result()

    def _pop_idle(self) -> _Worker | None:
        """Return an idle worker, or None. This is a single step, since another thread may take the last
        one."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _release(self, slots: threading.BoundedSemaphore, worker: _Worker, *, reusable: bool) -> None:
        """Return a worker to the pool, or end it, and free its slot."""
        if reusable:
            self._idle.append(worker)
        else:
            worker.end()
        slots.release()


class JobHandle:
    """A job that was started. Either `result` or `cancel` must be called exactly once, to release the
    worker."""

    def __init__(
        self, pool: WorkerPool, slots: threading.BoundedSemaphore, worker: _Worker, limits: JobLimits
    ) -> None:
        self._pool, self._slots, self._worker, self._limits = pool, slots, worker, limits

    def result(self) -> Any:
        """Wait for the job and return its result. Raises LimitError and JobError."""
        reusable = False
        try:
            answer, exits = self._worker.answer(self._limits)
            reusable = not exits
        finally:  # in all cases, since an answer that was not read would be taken for that of the next job
            self._pool._release(self._slots, self._worker, reusable=reusable)
        if "error" not in answer:
            return answer["value"]
        kind, message = answer["error"]
        if kind == "MemoryError":
            raise LimitError(f"it needs more than {self._limits.memory_bytes >> 20:,} MiB of memory")
        raise JobError(kind, message)

    def cancel(self) -> None:
        """End the job together with its worker."""
        self._pool._release(self._slots, self._worker, reusable=False)


class _Worker:
    """A worker process with its pipes, used by one job at a time."""

    def __init__(self) -> None:
        variables = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-I", _PROGRAM, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=variables,
            bufsize=0,
        )
        try:
            self.send([os.path.abspath(entry) for entry in sys.path])
        except BaseException:
            self.end()
            raise

    def is_alive(self) -> bool:
        """Return whether the process is running."""
        return self._process.poll() is None

    def end(self) -> None:
        """Kill the process and close its pipes."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None  # both are pipes
            stream.close()

    def answer(self, limits: JobLimits) -> tuple[dict[str, Any], bool]:
        """Return the answer to the last request, and whether the worker exits now. Raises LimitError."""
        # The kernel limits the processor time. On a busy machine, several times as much wall time may pass.
        deadline = time.monotonic() + 4 * limits.cpu_s + _WAIT_S
        try:
            size = int.from_bytes(self._read(8, deadline), "big")
            if size > limits.answer_bytes:
                raise LimitError(f"it gives more than {limits.answer_bytes >> 20:,} MiB")
            answer, exits = json.loads(self._read(size, deadline))
        except EOFError:
            raise LimitError(self._exit_reason(limits)) from None
        return answer, exits

    def send(self, message: Any) -> None:
        """Write a message. Raises BrokenPipeError if the process has ended."""
        data = json.dumps(message).encode()
        assert self._process.stdin is not None
        view = memoryview(len(data).to_bytes(8, "big") + data)
        while view:
            view = view[self._process.stdin.write(view) or 0 :]

    def _read(self, size: int, deadline: float) -> bytes:
        """Return the next `size` bytes. Raises EOFError if the process has ended, and LimitError after the
        deadline."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        poll = select.poll()  # unlike select(), it takes descriptors above 1,023
        poll.register(descriptor, select.POLLIN)
        data = bytearray()
        while len(data) < size:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise LimitError("it did not end in time")
            chunk = os.read(descriptor, min(size - len(data), 1 << 20))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)

    def _exit_reason(self, limits: JobLimits) -> str:
        """Return the reason why the process ended by itself, as the message of a LimitError."""
        status = self._process.wait()
        if status in (-signal.SIGPROF, -signal.SIGXCPU):
            return f"it takes more than {limits.cpu_s:,.4g} s of processor time"
        if status == -signal.SIGKILL:
            return "its worker was killed, perhaps by the system for want of memory"
        if status == -signal.SIGABRT:  # raised by libraries that cannot raise Python's MemoryError
            return (
                f"it needs more than {limits.memory_bytes >> 20:,} MiB of memory, or its worker has a fault"
            )
        return f"its worker crashed (status {status})"


_pools: WeakSet[WorkerPool] = WeakSet()


def _new_starter() -> ThreadPoolExecutor:
    """Return an executor whose one thread starts all workers, and lives as long as this process."""
    return ThreadPoolExecutor(1, "sandbox-worker-starter")


_starter = _new_starter()


def _after_fork() -> None:
    """Forget the parent's workers and thread, which a forked child does not have."""
    global _starter
    _starter = _new_starter()
    for pool in list(_pools):
        pool._reset()


os.register_at_fork(after_in_child=_after_fork)
