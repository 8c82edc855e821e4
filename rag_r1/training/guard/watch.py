"""What `rag-r1 train` says about a training while it runs: signs that it goes wrong, and its band.

It reads the run's files of metrics and prints; it ends nothing (supervisor.py does, with `--supervise`).
"""

from __future__ import annotations

import sys

from rag_r1.training.guard.bands import BandCheck
from rag_r1.training.guard.guard import Guard
from rag_r1.training.guard.signs import Sign, Verdict
from rag_r1.training.metrics_files import StartMetrics


class Watch:
    """Watches one start of a training."""

    def __init__(self, metrics: StartMetrics, guard: Guard, band: BandCheck | None):
        self.metrics, self.guard, self.band = metrics, guard, band

    def look(self) -> None:
        """Print what the lines that are new say."""
        for step, metrics, is_whole in self.metrics.new_lines():
            for sign in self.guard.see(step, metrics, is_whole=is_whole):
                print(report(sign, step), file=sys.stderr, flush=True)
                if sign.verdict > Verdict.WARN:
                    print(_remedy(sign, self.guard.options.margin), file=sys.stderr, flush=True)
            for line in self.band.see(step, metrics) if self.band and is_whole else ():
                print(f"band: {line}", flush=True)


def report(sign: Sign, step: int) -> str:
    """A sign, for people."""
    return f"guard: step {step}: {sign.verdict.name.lower().replace('_', ' ')}: {sign.cause}"


def _remedy(sign: Sign, margin: int) -> str:
    step = max(sign.since - margin, 0)
    if sign.verdict is Verdict.STOP:
        return "    -> end it and repair the cause; more steps, or other seeds, do not change that"
    return (
        f"    -> end it and go on from a checkpoint of step {step} or earlier with a smaller learning rate; "
        "rag-r1 train --supervise does so by itself"
    )
