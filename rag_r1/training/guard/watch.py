"""Prints what is known about a training while it runs: signs that it goes wrong, and exits from its band.

Nothing else is done here. With `--supervise`, supervisor.py acts on the returned signs.
"""

from __future__ import annotations

import sys

from rag_r1.training.guard.bands import BandCheck
from rag_r1.training.guard.guard import Guard
from rag_r1.training.guard.signs import Sign, Verdict
from rag_r1.training.metrics_files import StepMetrics


def print_signs(
    entry: StepMetrics, guard: Guard, band: BandCheck | None, *, remedies: bool = False
) -> list[Sign]:
    """Print the new signs in the metrics of a step to stderr, since they are warnings, and the signals that
    leave the band, which are information, to stdout.

    With `remedies`, also prints what to do about a serious sign. Returns the signs, the worst first.
    """
    signs = guard.see(entry.step, entry.metrics, is_whole=entry.is_whole)
    for sign in signs:
        verdict = sign.verdict.name.lower().replace("_", " ")
        print(f"guard: step {entry.step}: {verdict}: {sign.cause}", file=sys.stderr, flush=True)
        if remedies and sign.verdict > Verdict.WARN:
            print(_remedy(sign, guard.options.margin), file=sys.stderr, flush=True)
    for line in band.see(entry.step, entry.metrics) if band and entry.is_whole else ():
        print(f"band: {line}", flush=True)
    return signs


def _remedy(sign: Sign, margin: int) -> str:
    """Return what to do about a sign. Checkpoints of the `margin` steps before it are not trusted."""
    if sign.verdict is Verdict.STOP:
        return "    -> end it and repair the cause; more steps, or other seeds, do not change that"
    step = max(sign.since - margin, 0)
    return (
        f"    -> end it and go on from a checkpoint of step {step} or earlier with a smaller learning rate; "
        "rag-r1 train --supervise does so by itself"
    )
