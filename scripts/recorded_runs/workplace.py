"""Runs the commands of a recorded run in a folder, each in a separate process, and keeps their output.

Commands run in the folder of their run and get relative paths, so that their hashes and output do not depend
on its location. Variables that would change the behaviour of a command are removed from its environment.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: Time limit of a command, in seconds.
TIMEOUT_S = 300
#: Variables that would change the behaviour of a command; all others are kept.
_REMOVED = re.compile(r"RAG_R1_|RETRIEVAL_|OPENAI_|CHAT_|HF_|STUB_|VERL_|COV_|PYTEST")
_ADDED = {
    "COLUMNS": "100",
    "HF_HUB_OFFLINE": "1",
    "LC_ALL": "C.UTF-8",
    "NO_COLOR": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONPATH": str(ROOT),
    "PYTHONWARNINGS": "ignore",
    "TERM": "dumb",
    "TOKENIZERS_PARALLELISM": "false",
    "TZ": "UTC",
}


def environment() -> dict[str, str]:
    """Return the environment of every command."""
    return {name: value for name, value in os.environ.items() if not _REMOVED.match(name)} | _ADDED


@dataclass
class Workplace:
    """The folder of a run."""

    folder: Path
    #: The exit statuses of its commands, in order.
    statuses: list[int] = field(default_factory=list)

    def rag_r1(self, *arguments: object, stdin: str = "") -> str:
        """Run a command of `rag-r1`, write its status and output into a file, and return its stdout."""
        command = [sys.executable, "-m", "rag_r1.cli", *map(str, arguments)]
        finished = subprocess.run(
            command,
            cwd=self.folder,
            env=environment(),
            input=stdin,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=TIMEOUT_S,
        )
        self._write_output(arguments, finished.returncode, finished.stdout, finished.stderr)
        return finished.stdout

    @contextmanager
    def running(self, *arguments: object) -> Iterator[subprocess.Popen[str]]:
        """Run a server during the block; then end it, and write its status and output into a file.

        What the block reads of its stdout is not in the file.
        """
        command = [sys.executable, "-m", "rag_r1.cli", *map(str, arguments)]
        log = self.folder / "stderr.part"
        with open(log, "w", encoding="utf-8") as errors:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True
            )
            try:
                yield process
                process.send_signal(signal.SIGTERM)
                rest, _ = process.communicate(timeout=60)
            finally:
                process.kill()
                process.wait()
        self._write_output(arguments, process.returncode, rest, log.read_text(encoding="utf-8"))
        log.unlink()

    def write_lines(self, name: str, values: Sequence[Any]) -> None:
        """Write a file of JSON lines, such as the requests to a server."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(value, default=_plain) + "\n" for value in values)
        path.write_text("".join(lines), encoding="utf-8")

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file."""
        (self.folder / name).write_text(json.dumps(value, default=_plain, indent=1) + "\n", encoding="utf-8")

    def _write_output(self, arguments: Sequence[object], status: int, out: str, errors: str) -> None:
        """Write a command with its status and output into a file."""
        self.statuses.append(status)
        command = " ".join(map(str, arguments))
        text = f"$ rag-r1 {command}\nstatus {status}\n== stdout\n{out}\n== stderr\n{errors}\n"
        path = self.folder / f"command-{len(self.statuses):02}.txt"
        path.write_text(text, encoding="utf-8")


def flags(values: Mapping[str, object]) -> list[str]:
    """Return the flag and the value of each entry that is not None, as arguments of a command."""
    pairs = (
        (f"--{name.replace('_', '-')}", str(value)) for name, value in values.items() if value is not None
    )
    return [argument for pair in pairs for argument in pair]


def _plain(value: Any) -> Any:
    """Return the JSON value of a numpy array or number or of a dataclass, and any other value as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__dict__"):
        return vars(value)
    return str(value)
