"""Runs the steps of a pipeline in order, and prints its progress.

First, the processes that a killed invocation left on this machine are ended (processes.py). The pipeline's
folder then decides for each step whether it is skipped, resumed or refused (steps.py). A step is printed as
`2/9 index`, and at its end as `2/9 index: done in 3 s` or `2/9 index: was done before`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from rag_r1.runs.processes import mark_children, stop_leftovers
from rag_r1.runs.start_checks import FAULTS, StartChecks
from rag_r1.runs.steps import PipelineFolder, Step

AnyStep = TypeVar("AnyStep", bound=Step)


def check_steps(out: Path, *makers: Callable[[], Sequence[Step]]) -> None:
    """Check that steps which have begun in `out` have the same settings now, before any of them runs.

    Each of `makers` returns some of the steps. If one cannot because of a problem that the user can correct,
    another check has to report that. Raises StartError with the problem of each step.
    """
    if not out.exists():
        return
    folder = PipelineFolder(out)
    with StartChecks() as checks:
        for make_steps in makers:
            with suppress(*FAULTS):
                for step in make_steps():
                    checks.run(folder.status, step)


def run_steps(
    folder: PipelineFolder,
    steps: Sequence[AnyStep],
    before: Callable[[AnyStep], object] = lambda step: None,
    after: Callable[[AnyStep, bool], object] = lambda step, is_new: None,
) -> None:
    """Run the steps that are not done. This process must hold the lock of `folder`.

    `before` is called with each step before it runs. `after` is called with each step when it is done, and
    with whether this invocation did it. Raises RunError, and whatever the steps raise.
    """
    mark_children(folder.out)
    if leftovers := stop_leftovers(folder.out):
        print(f"ended {leftovers} processes that an earlier start had left behind")
    for number, step in enumerate(steps, 1):
        progress = f"{number}/{len(steps)} {step.name}"
        print(progress, flush=True)
        before(step)
        is_new = folder.run(step) != "done"
        status = f"done in {folder.seconds(step.name):.0f} s" if is_new else "was done before"
        print(f"{progress}: {status}", flush=True)
        after(step, is_new)
