"""Measures how long an installation takes with pip and with uv, with an empty and with a filled cache.

    python benchmarks/installation.py                     # all four combinations, one after another
    python benchmarks/installation.py --pypi-only --demo  # from nothing to the demo's picture

Each row is a run of `scripts/setup_env.sh` into a new environment, from the interpreter to the editable
installation of this clone. The caches of pip and uv are in a folder of the benchmark: the first run of an
installer finds it empty, and the second finds the downloads of the first. `--pypi-only` hides the
configuration of pip and uv, so that only the Python Package Index is used. `--demo` adds a run of `bash
train_grpo.sh` in a fresh clone of the last commit, with empty caches, and measures the time until its picture
is written. All files are removed afterwards. The seconds include downloads through this machine's network.
Linux only.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GB = 1e9


def environment(work: Path, pypi_only: bool, **more: str) -> dict[str, str]:
    """Return this process's variables without an active environment, with caches below `work`, and `more`."""
    hidden = {"VIRTUAL_ENV", "PYTHONPATH", "VENV", "RAG_R1_INSTALLER"}
    if pypi_only:
        hidden |= {name for name in os.environ if name.startswith(("PIP_", "UV_")) and name != "PIP_CERT"}
        more |= {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    caches = {"UV_CACHE_DIR": str(work / "uv-cache"), "PIP_CACHE_DIR": str(work / "pip-cache")}
    return {**kept, **caches, "RAG_R1_PLATFORM": "cpu", **more}


def run(command: list[str], folder: Path, variables: dict[str, str]) -> tuple[float, str]:
    """Run a command; returns its seconds and its output. Raises SystemExit if it fails."""
    started = time.perf_counter()
    finished = subprocess.run(
        command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    seconds = time.perf_counter() - started
    if status := finished.returncode:
        sys.exit(f"error: {' '.join(command)} ended with status {status}\n{finished.stdout[-2000:]}")
    return seconds, finished.stdout


def size(folder: Path) -> float:
    """Return the size of a folder on disk, in GB; a file with several hard links counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for path in folder.rglob("*"):
        if not path.is_symlink() and path.is_file():
            status = path.stat()
            sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(sizes.values()) / GB


def machine() -> str:
    """Describe this machine in one line: cores, processor, date and load."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    load = os.getloadavg()[0]
    processor = model[1] if model else "an unknown processor"
    return f"{os.cpu_count()} cores of {processor}, {datetime.date.today()}, load {load:.1f} at the start"


def torch_version(output: str) -> str:
    """Return the version of torch in the output of the setup script, or `?`."""
    match = re.search(r"torch=+([^;)\s]+)", output)
    return match[1] if match else "?"


def installation(work: Path, installer: str, cache: str, pypi_only: bool) -> str:
    """Make, measure and remove an environment; returns its row in the table.

    `cache` is `empty` or `filled`, as the table says.
    """
    venv = work / "venv"
    variables = environment(work, pypi_only, VENV=str(venv), RAG_R1_INSTALLER=installer)
    seconds, output = run(["bash", str(ROOT / "scripts" / "setup_env.sh")], work, variables)
    match = re.search(rf"into {re.escape(str(venv))} with (\w+)", output)
    used = match[1] if match else "?"
    row = f"| {used} | {cache} | {torch_version(output)} | {seconds:.0f} | {size(venv):.1f} |"
    shutil.rmtree(venv)
    return row


def demo(work: Path, pypi_only: bool) -> str:
    """Run the demo from a fresh clone with empty caches to its picture; returns its row in the table.

    Raises SystemExit if it fails or makes no picture.
    """
    clone = work / "clone"
    started = time.perf_counter()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    variables = environment(work / "fresh", pypi_only)
    installed, output = run(["bash", "scripts/setup_env.sh"], clone, variables)
    run(["bash", "train_grpo.sh"], clone, variables)
    seconds = time.perf_counter() - started
    picture = clone / "outputs" / "demo" / "grpo" / "report.png"
    if not picture.is_file():
        sys.exit(f"error: the demo ended without {picture}")
    return f"| {torch_version(output)} | {installed:.0f} | {seconds - installed:.0f} | {seconds:.0f} |"


def main() -> None:
    """Measure the chosen installations, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--installers", nargs="*", default=["uv", "pip"], choices=["uv", "pip"])
    parser.add_argument("--pypi-only", action="store_true", help="hide the configuration of pip and uv")
    parser.add_argument("--demo", action="store_true", help="also the demo, from nothing to its picture")
    parser.add_argument(
        "--work", type=Path, help="where there is space for 20 GB (default: a temporary folder)"
    )
    options = parser.parse_args()
    print(machine(), flush=True)
    work = Path(tempfile.mkdtemp(prefix="rag-r1-installation-", dir=options.work))
    try:
        if options.installers:
            print("\n| installer | cache | torch | seconds | GB on disk |\n|---|---|---|---|---|", flush=True)
        for installer in options.installers:
            for cache in ("empty", "filled"):
                print(installation(work, installer, cache, options.pypi_only), flush=True)
            for folder in ("uv-cache", "pip-cache"):
                shutil.rmtree(work / folder, ignore_errors=True)
        if options.demo:
            print("\n| torch | installation, s | demo, s | together, s |\n|---|---|---|---|", flush=True)
            print(demo(work, options.pypi_only), flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
