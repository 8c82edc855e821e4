"""A pool of sandbox workers that run jobs on hostile data within limits.

    pool = WorkerPool()
    pool.call("rag_r1.sandbox.documents:read", [path, ".pdf"], JobLimits(cpu_s=10))

A job is a function of a module; its arguments and its result are JSON, and travel through the pipes of a
worker process (worker.py). `call` blocks and may be made from any thread; coroutines make it in a thread. A
worker is started by the first call that finds none idle, in about 30 ms, and used again afterwards. It has
neither the environment of this process, in which there may be keys, nor its standard output. Linux ends it
when this process ends, however that happens. The child of a fork has no workers at first.
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
#: Variables without which Python may not start, or reads names of files otherwise.
_PASSED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
#: Longest waiting for a worker that does not compute, beside its processor time: a busy machine, a slow disk.
_WAIT_S = 30.0


@dataclass(frozen=True)
class JobLimits:
    """Limits of one job: seconds of processor time, bytes of address space, and bytes of its answer."""

    cpu_s: float
    memory_bytes: int = 1 << 30
    answer_bytes: int = 128 << 20

    def message(self) -> dict[str, Any]:
        """The limits that the worker itself sets, by the names that it reads."""
        return {"cpu_s": self.cpu_s, "memory": self.memory_bytes}


class LimitError(Exception):
    """A job was ended by a limit, or has ended its worker; the message says why, beginning with `it`."""


class JobError(Exception):
    """A job has raised. `kind`: the exception's name (`OSError` for all of its kind); the message is its
    own."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


class WorkerPool:
    """At most `max_workers` processes (as many as there are cores, up to 4); a call beyond them waits."""

    def __init__(self, max_workers: int | None = None):
        self._max_workers = max_workers or max(1, min(4, os.cpu_count() or 1))
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._slots = threading.BoundedSemaphore(self._max_workers)
        self._idle: list[_Worker] = []

    def call(self, job: str, arguments: Sequence[Any], limits: JobLimits) -> Any:
        """The result of the job, `module:function`. Raises LimitError and JobError; OSError if no process can
        be started, and RuntimeError for that while the interpreter shuts down."""
        return self.start(job, arguments, limits).result()

    def start(self, job: str, arguments: Sequence[Any], limits: JobLimits) -> JobHandle:
        """Begin a job as soon as a worker is free. Its `result()` or `cancel()` must follow; before that, the
        thread begins further jobs by `try_start`: here it could wait for its own worker. Raises OSError and
        RuntimeError as `call`."""
        self._slots.acquire()
        return self._begin(job, arguments, limits)

    def try_start(self, job: str, arguments: Sequence[Any], limits: JobLimits) -> JobHandle | None:
        """As `start`, but None if all workers are busy."""
        return self._begin(job, arguments, limits) if self._slots.acquire(blocking=False) else None

    def close(self) -> None:
        """End the idle workers; a later call starts another one."""
        while (worker := self._pop_idle()) is not None:
            worker.end()

    def _begin(self, job: str, arguments: Sequence[Any], limits: JobLimits) -> JobHandle:
        """Send a job to a worker; the caller has acquired a slot."""
        slots, worker = self._slots, None
        try:
            worker = self._take_worker()
            with suppress(BrokenPipeError):  # `result` says why the worker has ended
                worker.send({"job": job, "arguments": arguments, **limits.message()})
        except BaseException:  # also Ctrl-C: half a message may be in the pipe
            if worker is not None:
                worker.end()
            slots.release()
            raise
        return JobHandle(self, slots, worker, limits)

    def _take_worker(self) -> _Worker:
        while (worker := self._pop_idle()) is not None:
            if worker.is_alive():
                return worker
            worker.end()
        # Linux ends a worker with the thread that has started it: that thread must live as long as we do.
        return _starter.submit(_Worker).result()

    def _pop_idle(self) -> _Worker | None:
        """In one step: another thread may take the last one."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _release(self, slots: threading.BoundedSemaphore, worker: _Worker, reusable: bool) -> None:
        if reusable:
            self._idle.append(worker)
        else:
            worker.end()
        slots.release()


class JobHandle:
    """A job that was begun. Either `result` or `cancel` is called, once: both give up the worker."""

    def __init__(
        self, pool: WorkerPool, slots: threading.BoundedSemaphore, worker: _Worker, limits: JobLimits
    ) -> None:
        self._pool, self._slots, self._worker, self._limits = pool, slots, worker, limits

    def result(self) -> Any:
        """Wait for it. Raises LimitError and JobError."""
        reusable = False
        try:
            answer, exits = self._worker.answer(self._limits)
            reusable = not exits
        finally:  # whatever happens: an answer that was not read would be taken for the next job's
            self._pool._release(self._slots, self._worker, reusable)
        if "error" not in answer:
            return answer["value"]
        kind, message = answer["error"]
        if kind == "MemoryError":
            raise LimitError(f"it needs more than {self._limits.memory_bytes >> 20:,} MiB of memory")
        raise JobError(kind, message)

    def cancel(self) -> None:
        """End it with its worker."""
        self._pool._release(self._slots, self._worker, reusable=False)


class _Worker:
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
        return self._process.poll() is None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def answer(self, limits: JobLimits) -> tuple[dict[str, Any], bool]:
        """The answer to a request that was sent, and whether this worker exits now. Raises LimitError."""
        # Processor time is limited by the kernel; on a busy machine it takes several times as long.
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
        data = json.dumps(message).encode()
        assert self._process.stdin is not None
        view = memoryview(len(data).to_bytes(8, "big") + data)
        while view:
            view = view[self._process.stdin.write(view) or 0 :]

    def _read(self, size: int, deadline: float) -> bytes:
        """Raises EOFError, and LimitError after the deadline."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        poll = select.poll()  # select() knows no descriptor above 1,023
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
        """Why the process has ended by itself."""
        status = self._process.wait()
        if status in (-signal.SIGPROF, -signal.SIGXCPU):
            return f"it takes more than {limits.cpu_s:,.4g} s of processor time"
        if status == -signal.SIGKILL:
            return "its worker was killed, perhaps by the system for want of memory"
        if status == -signal.SIGABRT:  # what a library without Python's MemoryError does
            return (
                f"it needs more than {limits.memory_bytes >> 20:,} MiB of memory, or its worker has a fault"
            )
        return f"its worker crashed (status {status})"


_pools: WeakSet[WorkerPool] = WeakSet()


def _new_starter() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "sandbox-worker-starter")


_starter = _new_starter()


def _after_fork() -> None:
    """The parent's workers are not the child's, and its threads are not there."""
    global _starter
    _starter = _new_starter()
    for pool in list(_pools):
        pool._reset()


os.register_at_fork(after_in_child=_after_fork)
