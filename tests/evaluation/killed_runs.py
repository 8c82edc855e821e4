"""Commands that are signalled in the middle of a run, and the journals that they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


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


def journals(out: Path) -> list[Path]:
    """The files that are appended to while the command works."""
    return sorted(out.rglob("journal/**/*.ndjson"))


def written(out: Path) -> int:
    """Lines of all journals."""
    return sum(path.read_bytes().count(b"\n") for path in journals(out))


def killed_at(command: Sequence[str], out: Path, count: int) -> bool:
    """Start `rag-r1 COMMAND` and kill it as soon as its journals have so many lines; False if it ended
    before."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rag_r1.cli", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while written(out) < count:
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    process.kill()
    process.wait()
    return True
