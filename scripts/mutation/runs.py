"""Copies of the tree in which pytest runs, for scripts/mutants.py; the checkout itself is only read.

A copy has what git tracks or would track. Its modules are compiled once into files that Python checks by the
hash of the source, not by its time and size: a mutant made from a copy is compiled anew, whatever the clock
says, and everything else is not. The copy comes first on the module search path, before the checkout that an
editable installation leads to, in pytest and in what its tests start; plugin.py checks that.

What a test could do differently in another run is fixed: hypothesis' seed and the seed of hashes. Temporary
files, of hypothesis too, go to a folder that is removed with the copy.
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

#: Seconds that a session may take, and that imports may take before its tests begin.
LONGEST = 300.0
#: Seconds in which a session that gets SIGTERM can end what its tests started.
_GRACE = 10.0
#: As in tests/run.sh, and the same in every run.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HYPOTHESIS_PROFILE": "quick",
    "OMP_WAIT_POLICY": "passive",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class SessionError(RuntimeError):
    """pytest could not do its work, for a reason that is no mutant's."""


@dataclass(frozen=True)
class Session:
    """How pytest ended: its status, or None after the time limit, the seconds of the tests without the
    imports before them, and what the plugin wrote, if anything."""

    status: int | None
    seconds: float
    result: dict[str, Any]
    output: str


@contextmanager
def copied(tree: Path, packages: Sequence[str]) -> Iterator[Path]:
    """A copy of the tree, compiled, in a temporary folder that is removed in the end."""
    listing = ["git", "-C", str(tree), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, check=True, capture_output=True).stdout.decode().split("\0")
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
    """A copy of a copy, with its compiled files."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        again = Path(folder).resolve() / "tree"
        shutil.copytree(copy, again)
        yield again


def pytest_in(
    copy: Path,
    packages: Sequence[str],
    arguments: Sequence[str],
    *,
    limit: float | None = None,
    visible: bool = False,
    **options: Any,
) -> Session:
    """Run pytest in a copy with the plugin and its options. `limit`: seconds from the first test on.
    `visible`: its output goes to the terminal. Raises SessionError if modules came from elsewhere, or if
    someone else killed it."""
    scratch = copy.with_name("scratch")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    about = {
        "result": str(scratch / "result.json"),
        "collected": str(scratch / "collected"),
        "tree": str(copy),
        "packages": list(packages),
        **options,
    }
    environment = {
        **os.environ,
        **_ENVIRONMENT,
        "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
        "MUTANTS": json.dumps(about),
        "PYTHONPATH": os.pathsep.join([str(copy), str(Path(__file__).resolve().parents[1])]),
        "TMPDIR": str(scratch),
    }
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-p", "mutation.plugin", "-p", "no:cacheprovider"]
    command += ["--hypothesis-seed=0", *arguments]
    with open(scratch / "output", "wb") as output:
        stream = None if visible else output
        # A session of its own, to end what its tests started along with it.
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
        raise SessionError("pytest was killed, perhaps for want of memory: run the same command again")
    return session


def _wait(process: subprocess.Popen[bytes], collected: Path, limit: float | None) -> tuple[int | None, float]:
    """The exit status and the seconds of the tests; None when the time is over, that of the imports or that
    of the tests."""
    began, importing = time.monotonic(), True
    most = float("inf") if limit is None else LONGEST
    while process.poll() is None:
        if importing and collected.exists():
            began, importing = time.monotonic(), False
            most = float("inf") if limit is None else limit
        if time.monotonic() - began > most:
            return None, most
        time.sleep(0.05)
    return process.returncode, time.monotonic() - began


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the session's processes: those of tests that failed may still run."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
