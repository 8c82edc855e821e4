"""A pool of sandbox workers that run jobs on hostile data within limits.

    workers = Workers()
    workers.call("rag_r1.sandbox.documents:read", [path], Limits(cpu_s=10, memory=1 << 30))

`call` blocks and may be made from any thread; coroutines make it in a thread. A worker is started by the
first call that finds none idle, in about 30 ms, and used again afterwards. It has neither the environment of
this process, in which there may be keys, nor its standard output. Linux ends it when this process ends,
however that happens. A process that forks has no workers at first.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

_PROGRAM = str(Path(__file__).with_name("worker.py"))
#: Variables without which Python may not start, or reads names of files otherwise.
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
#: Longest waiting for a worker that does not compute, beside its processor time: a busy machine, a slow disk.
_WAIT_S = 30.0


@dataclass(frozen=True)
class JobLimits:
    """Of one job: seconds of processor time, bytes of addresses, and bytes of its answer."""

    cpu_s: float
    memory: int = 1 << 30
    answer: int = 128 << 20

    def message(self) -> dict[str, Any]:
        """As the worker reads them."""
        return {"cpu_s": self.cpu_s, "memory": self.memory}


class LimitError(Exception):
    """A job was ended by a limit, or has ended its worker; the message says which, beginning with `it`."""


class JobError(Exception):
    """A job has raised. `kind`: the exception's name (`OSError` for all of its kind); the message is its
    own."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


class WorkerPool:
    """At most `most` processes; a call beyond them waits."""

    def __init__(self, most: int | None = None):
        self._most = most or max(1, min(4, os.cpu_count() or 1))
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._seats = threading.BoundedSemaphore(self._most)
        self._idle: list[_Worker] = []

    def call(self, job: str, arguments: Sequence[Any], limits: JobLimits) -> Any:
        """What the job, `module:function`, returns. Raises LimitError and JobError, and OSError if no process
        can be started."""
        started = self.start(job, arguments, limits)
        assert started is not None
        return started.result()

    def start(
        self, job: str, arguments: Sequence[Any], limits: JobLimits, wait: bool = True
    ) -> JobHandle | None:
        """Begin a job; its `result()` or `give_up()` must follow. Without `wait` None, if all workers are
        busy: who has begun a job must not wait for another one. Raises OSError if no process can be
        started."""
        if not self._seats.acquire(blocking=wait):
            return None
        try:
            worker = self._worker()
            try:
                worker.send({"job": job, "arguments": arguments, **limits.message()})
            except BrokenPipeError:  # `result` says why it has ended
                pass
        except BaseException:
            self._seats.release()
            raise
        return JobHandle(self, self._seats, worker, limits)

    def close(self) -> None:
        """End the idle workers; a later call starts another one."""
        while self._idle:
            self._idle.pop().end()

    def _back(self, seats: threading.BoundedSemaphore, worker: _Worker, usable: bool) -> None:
        if usable:
            self._idle.append(worker)
        else:
            worker.end()
        seats.release()

    def _worker(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive():
                return worker
            worker.end()
        # Linux ends a worker with the thread that has started it: that thread must live as long as we do.
        return _starter.submit(_Worker).result()


class JobHandle:
    """A job that was begun."""

    def __init__(
        self, pool: WorkerPool, seats: threading.BoundedSemaphore, worker: _Worker, limits: JobLimits
    ) -> None:
        self._pool, self._seats, self._worker, self._limits = pool, seats, worker, limits

    def result(self) -> Any:
        """Wait for it. Raises LimitError and JobError."""
        usable = False
        try:
            answer, last = self._worker.answer(self._limits)
            usable = not last
        finally:  # whatever happens: an answer that was not read would be taken for the next job's
            self._pool._back(self._seats, self._worker, usable)
        if "error" not in answer:
            return answer["value"]
        kind, message = answer["error"]
        if kind == "MemoryError":
            raise LimitError(f"it needs more than {self._limits.memory >> 20:,} MiB of memory")
        raise JobError(kind, message)

    def give_up(self) -> None:
        """End it with its worker."""
        self._pool._back(self._seats, self._worker, False)


class _Worker:
    def __init__(self) -> None:
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-I", _PROGRAM, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=kept,
            bufsize=0,
        )
        self.send([os.path.abspath(entry) for entry in sys.path])

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def answer(self, limits: JobLimits) -> tuple[dict[str, Any], bool]:
        """The answer to a request that was sent, and whether this worker ends now. Raises LimitError."""
        until = time.monotonic() + 4 * limits.cpu_s + _WAIT_S
        try:
            size = int.from_bytes(self._received(8, until), "big")
            if size > limits.answer:
                raise LimitError(f"it gives more than {limits.answer >> 20:,} MiB")
            answer, last = json.loads(self._received(size, until))
        except EOFError:
            raise LimitError(self._end_told(limits)) from None
        return answer, last

    def send(self, message: Any) -> None:
        data = json.dumps(message).encode()
        assert self._process.stdin is not None
        view = memoryview(len(data).to_bytes(8, "big") + data)
        while view:
            view = view[self._process.stdin.write(view) or 0 :]

    def _received(self, size: int, until: float) -> bytes:
        """Raises EOFError, and LimitError when the time is over."""
        assert self._process.stdout is not None
        answers = self._process.stdout.fileno()
        poll = select.poll()  # select() knows no descriptor above 1,023
        poll.register(answers, select.POLLIN)
        data = bytearray()
        while len(data) < size:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                raise LimitError("it did not end in time")
            chunk = os.read(answers, min(size - len(data), 1 << 20))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)

    def _end_told(self, limits: JobLimits) -> str:
        """Why the process has ended by itself."""
        status = self._process.wait()
        if status in (-signal.SIGPROF, -signal.SIGXCPU):
            return f"it takes more than {limits.cpu_s:,.4g} s of processor time"
        if status == -signal.SIGKILL:
            return "its reader was killed, perhaps by the system for want of memory"
        if status == -signal.SIGABRT:  # what a library without Python's MemoryError does
            return f"it needs more than {limits.memory >> 20:,} MiB of memory, or its reader has a fault"
        return f"its reader crashed (status {status})"


_pools: WeakSet[WorkerPool] = WeakSet()
_starter = ThreadPoolExecutor(1, "limited-workers")


def _after_fork() -> None:
    """The parent's workers are not the child's, and its threads are not there."""
    global _starter
    _starter = ThreadPoolExecutor(1, "limited-workers")
    for pool in list(_pools):
        pool._reset()


os.register_at_fork(after_in_child=_after_fork)
