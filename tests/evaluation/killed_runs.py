"""Commands that are signalled in the middle of a run, and the journals that they leave."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path


def lines(path: Path) -> list[dict]:
    """The whole lines of a journal's file."""
    raw = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in raw.splitlines(keepends=True) if line.endswith(b"\n")]


def signal_at(process: subprocess.Popen, tape: Path, answers: int, number: int) -> None:
    """Send a signal as soon as the tape has so many answers."""
    while not tape.exists() or tape.read_bytes().count(b"\n") < answers:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.01)
    process.send_signal(number)


def kill_at(process: subprocess.Popen, tape: Path, answers: int) -> None:
    """SIGKILL as soon as the tape has so many answers."""
    signal_at(process, tape, answers, signal.SIGKILL)
    process.wait()
