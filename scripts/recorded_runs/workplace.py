"""A folder in which the commands of a run work, each as a process of its own, and where their output is kept.

Commands work in the folder of their run and get relative paths, so that what they hash and print does not
depend on where it is. Their environment is the same wherever they run.
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
#: What a command may take, in seconds.
TIMEOUT_S = 300
#: Variables that would change what a command does; the rest of the environment is left as it is.
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
    """The environment of every command."""
    return {name: value for name, value in os.environ.items() if not _REMOVED.match(name)} | _ADDED


@dataclass
class Workplace:
    """The folder of one run. `statuses`: of its commands, in order."""

    folder: Path
    statuses: list[int] = field(default_factory=list)

    def rag_r1(self, *words: object, stdin: str = "") -> str:
        """Run a command to its end and keep what it printed; returns its stdout."""
        command = [sys.executable, "-m", "rag_r1.cli", *map(str, words)]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment(),
            input=stdin,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=TIMEOUT_S,
        )
        self._keep(words, done.returncode, done.stdout, done.stderr)
        return done.stdout

    @contextmanager
    def running(self, *words: object) -> Iterator[subprocess.Popen[str]]:
        """A command that serves, for the length of a block; it is then told to end, and its output kept."""
        command = [sys.executable, "-m", "rag_r1.cli", *map(str, words)]
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
        self._keep(words, process.returncode, rest, log.read_text(encoding="utf-8"))
        log.unlink()

    def write_lines(self, name: str, values: Sequence[Any]) -> None:
        """A file of JSON lines, e.g. what a server was asked."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            "".join(json.dumps(value, default=_plain) + "\n" for value in values), encoding="utf-8"
        )

    def write_json(self, name: str, value: Any) -> None:
        """A JSON file."""
        (self.folder / name).write_text(json.dumps(value, default=_plain, indent=1) + "\n", encoding="utf-8")

    def _keep(self, words: Sequence[object], status: int, out: str, errors: str) -> None:
        self.statuses.append(status)
        text = (
            f"$ rag-r1 {' '.join(map(str, words))}\nstatus {status}\n== stdout\n{out}\n== stderr\n{errors}\n"
        )
        path = self.folder / f"command-{len(self.statuses):02}.txt"
        path.write_text(text, encoding="utf-8")


def flags(values: Mapping[str, object]) -> list[str]:
    """Words of a command: flag and value of each entry that is not None."""
    pairs = (
        (f"--{name.replace('_', '-')}", str(value)) for name, value in values.items() if value is not None
    )
    return [word for pair in pairs for word in pair]


def _plain(value: Any) -> Any:
    """JSON's value for an array or a number of numpy, or for a dataclass."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__dict__"):
        return vars(value)
    return str(value)
