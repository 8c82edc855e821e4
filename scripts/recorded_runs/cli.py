"""The command line of the recorded runs; `__init__.py` describes them."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .comparison import SUMMARY, compare_recordings
from .workplace import ROOT, Workplace, environment

#: The folder in which the commands of every recording run, since some write absolute paths and hashes of
#: these. The folder of a run is moved from here into the recording.
WORKING = Path(tempfile.gettempdir()) / "rag-r1-recorded-runs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 1 if a run could not be recorded or two recordings differ, else 0."""
    parser = argparse.ArgumentParser(
        prog="recorded_runs", description="Record runs of every command; compare two."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="record all runs")
    recording.add_argument("out", type=Path)
    recording.add_argument("--only", nargs="+", default=[], metavar="RUN", help="these runs only")
    comparing = commands.add_parser("compare", help="are two recordings equal?")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--renames", type=Path, help='JSON with {"modules": {old: new}}')
    comparing.add_argument("--differences", type=int, default=40, help="how many are printed")
    args = parser.parse_args(arguments)
    if args.command == "record":
        return record(args.out.resolve(), args.only)
    renames = json.loads(args.renames.read_text("utf-8")) if args.renames else {}
    return compare_recordings(args.old, args.new, renames.get("modules", {}), args.differences)


def record(out: Path, only: Sequence[str]) -> int:
    """Record the runs named by `only`, or all runs, into a folder; returns 1 if one could not be recorded.

    Raises SystemExit for an unknown run, a run that the folder already has, and a concurrent recording.
    """
    variables = environment()
    os.environ.clear()  # servers and rollouts run in this process
    os.environ.update(variables)
    from .runs import RUNS  # imports the project's own code, which must see the new environment

    if unknown := [name for name in only if name not in RUNS]:
        raise SystemExit(f"there are no runs {', '.join(unknown)}; there are {', '.join(RUNS)}")
    places = {sys.executable: "<python>", sys.prefix: "<environment>", str(ROOT): "<root>"}
    summary: dict[str, Any] = {"places": places, "runs": {}}
    if (out / SUMMARY).exists():  # these runs are added to a recording
        summary["runs"] = json.loads((out / SUMMARY).read_text("utf-8"))["runs"]
    out.mkdir(parents=True, exist_ok=True)
    for name in only or RUNS:
        if (out / name).exists():
            raise SystemExit(f"{out / name} exists: remove it, or record into another folder")
        folder = WORKING / name
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise SystemExit(f"{folder} exists: wait for another recording, or remove it") from None
        figures = summary["runs"][name] = _record_run(RUNS[name], folder)
        os.chdir(out)  # out of the folder that is moved
        shutil.move(folder, out / name)
        (out / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        line = "{seconds} s, {cpu_s} s of a processor, statuses {statuses}".format(**figures)
        print(f"{name}: {line}" + (f", FAILED: {figures['fault']}" if figures["fault"] else ""), flush=True)
    runs = summary["runs"].values()
    sums = (sum(run[key] for run in runs) for key in ("seconds", "cpu_s"))
    print("all: {:.0f} s, {:.0f} s of a processor".format(*sums))
    return int(any(run["fault"] for run in runs))


def _record_run(run: Callable[[Workplace], None], folder: Path) -> dict[str, Any]:
    """Make a run in its folder; return its seconds and exit statuses, and the fault that ended it or None."""
    os.chdir(folder)
    workplace, started, started_cpu_s, fault = Workplace(folder), time.monotonic(), _cpu_s(), None
    try:
        run(workplace)
    except Exception as error:
        traceback.print_exc()
        fault = f"{type(error).__name__}: {error}"
    seconds, cpu_s = round(time.monotonic() - started, 1), round(_cpu_s() - started_cpu_s, 1)
    return {"seconds": seconds, "cpu_s": cpu_s, "statuses": workplace.statuses, "fault": fault}


def _cpu_s() -> float:
    """Return the processor seconds of this process and of its finished children."""
    return sum(os.times()[:4])
