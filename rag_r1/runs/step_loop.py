"""Runs the steps of a pipeline one after the other, and prints how far it is.

What a killed start has left running on this machine is ended first (processes.py); which steps are skipped,
continued or refused, the folder decides (steps.py). Each step is printed as `2/9 index`, and at its end as
`2/9 index: done in 3 s` or `2/9 index: was done before`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rag_r1.runs.processes import mark_children, stop_leftovers
from rag_r1.runs.steps import PipelineFolder, Step

AnyStep = TypeVar("AnyStep", bound=Step)


def run_steps(
    folder: PipelineFolder, steps: Sequence[AnyStep], before: Callable[[AnyStep], object] = lambda step: None
) -> Iterator[tuple[AnyStep, bool]]:
    """Each step when it is done, and whether it was done now; `before` is called with each in turn before it
    begins. `folder`: held by this process. Raises RunError, and what the steps raise."""
    mark_children(folder.out)
    if n_ended := stop_leftovers(folder.out):
        print(f"ended {n_ended} processes that an earlier start had left behind")
    for number, step in enumerate(steps, 1):
        progress = f"{number}/{len(steps)} {step.name}"
        print(progress, flush=True)
        before(step)
        is_new = folder.run(step) != "done"
        status = f"done in {folder.seconds(step.name):.0f} s" if is_new else "was done before"
        print(f"{progress}: {status}", flush=True)
        yield step, is_new
