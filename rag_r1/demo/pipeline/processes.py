"""Processes that a pipeline starts, and their end: also of those that a killed pipeline has left behind.

Every command runs in a session of its own, which is ended whole when the pipeline is interrupted (Ctrl-C,
SIGTERM) or fails. SIGKILL gives no chance to do so. Therefore every process that a pipeline starts, and every
process that these start (Ray's too), inherits the variable `RAG_R1_PIPELINE`, whose value is the folder OUT.
The next start in OUT, which holds its lock, finds such processes in /proc and ends them by their id before it
goes on: otherwise an orphaned training would write into the folder in which a new one is started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from rag_r1.demo.pipeline.folder import PipelineError
from rag_r1.demo.run import end_session

MARK = "RAG_R1_PIPELINE"
#: Seconds that a process is given to end by itself.
_END_S = 20.0
#: Lines of a log in an error.
_SHOWN = 25


def mark_children(out: Path) -> None:
    """From now on, every process that this one starts carries the mark of OUT."""
    os.environ[MARK] = str(out)


def run_module(
    *words: object, log: Path | None = None, watch: Callable[[], None] | None = None, **environment: str
) -> None:
    """Run `python -m ...` to its end; its output goes to this process's, or to the end of `log`. `watch` is
    called about twice a second. Raises PipelineError if it ends with another status than 0."""
    command = [sys.executable, "-m", *map(str, words)]
    output = None if log is None else log.open("ab")
    sys.stdout.flush()
    process = subprocess.Popen(
        command,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        while process.poll() is None:
            time.sleep(0.5)
            if watch is not None:
                watch()
    finally:
        end_session(process)
        if output is not None:
            output.close()
    if process.returncode:
        told = "" if log is None else f"; the end of {log}:\n{tail(log)}\n"
        raise PipelineError(
            f"python -m {words[0]} ended with status {process.returncode}{told}; the same command of the "
            "pipeline, given again, goes on"
        )


class SftBar:
    """A progress bar over the file in which veRL's SFT trainer logs a line for each step; `loss` is the
    validation's last."""

    def __init__(self, metrics: Path, steps: int):
        self.metrics = metrics
        self.loss: float | None = None
        self._bar = tqdm(total=steps, desc="sft", unit="step", mininterval=5)

    def __enter__(self) -> SftBar:
        return self

    def __exit__(self, *unused: object) -> None:
        self._bar.close()

    def update(self) -> None:
        """Show the last step."""
        lines = self.metrics.read_bytes().split(b"\n")[:-1] if self.metrics.exists() else []
        logged = [json.loads(line) for line in lines]
        steps = [entry for entry in logged if "train/loss" in entry["data"]]
        self.loss = next(
            (e["data"]["val/loss"] for e in reversed(logged) if "val/loss" in e["data"]), self.loss
        )
        if steps and int(steps[-1]["step"]) > self._bar.n:
            self._bar.set_postfix(loss=f"{steps[-1]['data']['train/loss']:.3f}", refresh=False)
            self._bar.update(int(steps[-1]["step"]) - self._bar.n)


def tail(log: Path) -> str:
    """The last lines of a log."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return "\n".join(lines[-_SHOWN:])


def end_leftovers(out: Path) -> int:
    """End the processes that an earlier start in OUT has left behind; returns how many there were. Raises
    PipelineError if one does not end. Only for who holds OUT's lock."""
    left = leftovers(out)
    for sign, wait_s in ((signal.SIGTERM, _END_S), (signal.SIGKILL, _END_S)):
        for process in leftovers(out):
            try:
                os.kill(process, sign)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + wait_s
        while leftovers(out) and time.monotonic() < deadline:
            time.sleep(0.2)
    if still := leftovers(out):
        raise PipelineError(
            f"processes of an earlier start in {out} do not end: {', '.join(map(str, still))}"
        )
    return len(left)


def leftovers(out: Path) -> list[int]:
    """Ids of the running processes with the mark of OUT, without this one. None where there is no /proc."""
    mark = f"{MARK}={out}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        try:
            # What has ended but is not waited for (a zombie) has no environment left.
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # ended meanwhile, or somebody else's
            continue
    return sorted(found)
