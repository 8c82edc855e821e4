"""Makes copies of the tree and runs pytest in them, for scripts/mutants.py; the checkout itself is only read.

A copy has the files that git tracks or would track. Its modules are compiled once into files that Python
checks by the hash of the source, not by time and size. A mutant is therefore always compiled, and all other
modules are not. In pytest and in the processes of its tests the copy comes first on the module search path,
before the checkout to which an editable installation leads; plugin.py checks this.

Sources of randomness are fixed: the seeds of hypothesis and of hashes. Temporary files, also those of
hypothesis, are in a folder that is removed with the copy.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Time limit of a session, and of the imports before its tests, in seconds.
LONGEST = 300.0
#: Seconds after SIGTERM in which a session can end the processes of its tests.
_GRACE = 10.0
#: Variables as in tests/run.sh, which are the same in every run.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HYPOTHESIS_PROFILE": "quick",
    "OMP_WAIT_POLICY": "passive",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class SessionError(RuntimeError):
    """The tests could not be run, or failed for a reason other than a mutant."""


@dataclass(frozen=True)
class Session:
    """The result of a run of pytest."""

    #: The exit status; None after the time limit.
    status: int | None
    #: Seconds of the tests, without the imports before them.
    seconds: float
    #: The result that the plugin wrote; {} if it wrote none.
    result: dict[str, Any]
    output: str


@contextmanager
def copied(tree: Path, packages: Sequence[str]) -> Iterator[Path]:
    """Yield a compiled copy of the tree in a temporary folder, which is removed at the end.

    Raises SessionError if git cannot list the files of the tree.
    """
    command = ["git", "-C", str(tree), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, capture_output=True)
    if listing.returncode:
        raise SessionError(f"{tree}: {listing.stderr.decode(errors='replace').strip()}")
    names = listing.stdout.decode().split("\0")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder).resolve() / "tree"
        copy.mkdir()
        for name in sorted(set(names) - {""}):
            if (tree / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tree / name, copy / name)
        command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash"]
        subprocess.run(
            [*command, *(package for package in packages if (copy / package).exists())], cwd=copy, check=True
        )
        yield copy


@contextmanager
def copied_again(copy: Path) -> Iterator[Path]:
    """Yield a copy of a copy, with its compiled files, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        second = Path(folder).resolve() / "tree"
        shutil.copytree(copy, second)
        yield second


def pytest_in(
    copy: Path,
    packages: Sequence[str],
    arguments: Sequence[str],
    *,
    limit: float | None = None,
    visible: bool = False,
    cover: bool = False,
) -> Session:
    """Run pytest in a copy with the plugin, which with `cover` records the lines that each test executes.

    `limit` is the time limit in seconds, from the first test on. If `visible`, the output goes to the
    terminal. Raises SessionError if modules were not imported from the copy, or if pytest was killed from
    outside.
    """
    scratch = copy.with_name("scratch")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    plugin_options = {
        "result": str(scratch / "result.json"),
        "collected": str(scratch / "collected"),
        "tree": str(copy),
        "packages": list(packages),
        "cover": cover,
    }
    environment = {
        **os.environ,
        **_ENVIRONMENT,
        "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
        "MUTANTS": json.dumps(plugin_options),
        "PYTHONPATH": os.pathsep.join([str(copy), str(Path(__file__).resolve().parents[1])]),
        "TMPDIR": str(scratch),
    }
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-p", "mutation.plugin", "-p", "no:cacheprovider"]
    command += ["--hypothesis-seed=0", *arguments]
    with open(scratch / "output", "wb") as output:
        stream = None if visible else output
        # In a new session, so that the processes of its tests can be ended together with it.
        process = subprocess.Popen(
            command, cwd=copy, env=environment, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            status, seconds = _wait(process, scratch / "collected", limit)
        finally:
            _end(process)
    text = (scratch / "output").read_text(encoding="utf-8", errors="replace")
    result = scratch / "result.json"
    written = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
    session = Session(status, seconds, written, text)
    if session.result.get("elsewhere"):
        raise SessionError(f"modules do not come from the copy: {', '.join(session.result['elsewhere'])}")
    if status == -signal.SIGKILL:
        raise SessionError("pytest was killed, perhaps for lack of memory: run the same command again")
    return session


def _wait(process: subprocess.Popen[bytes], collected: Path, limit: float | None) -> tuple[int | None, float]:
    """Return the exit status and the seconds of the tests; the status is None after a time limit.

    There is one limit for the imports, and one for the tests.
    """
    started, importing = time.monotonic(), True
    longest = float("inf") if limit is None else LONGEST
    while process.poll() is None:
        if importing and collected.exists():
            started, importing = time.monotonic(), False
            longest = float("inf") if limit is None else limit
        if time.monotonic() - started > longest:
            return None, longest
        time.sleep(0.05)
    return process.returncode, time.monotonic() - started


def _end(process: subprocess.Popen[bytes]) -> None:
    """End all processes of the session, since those of failed tests may still run."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
