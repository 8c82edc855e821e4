"""Runs the steps of a pipeline one after the other, and prints its progress.

The processes that a killed start has left on this machine are ended first (processes.py); the folder decides
which steps are skipped, continued or refused (steps.py). Each step is printed as `2/9 index`, and at its end
as `2/9 index: done in 3 s` or `2/9 index: was done before`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rag_r1.runs.processes import mark_children, stop_leftovers
from rag_r1.runs.steps import PipelineFolder, Step

AnyStep = TypeVar("AnyStep", bound=Step)


def run_steps(
    folder: PipelineFolder,
    steps: Sequence[AnyStep],
    before: Callable[[AnyStep], object] = lambda step: None,
    after: Callable[[AnyStep, bool], object] = lambda step, is_new: None,
) -> None:
    """Run the steps that are not done. `folder`: held by this process. `before` is called with each step
    before it begins, `after` with each step when it is done, and whether it was done now. Raises RunError,
    and what the steps raise."""
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
