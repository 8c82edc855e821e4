"""The guard of a training: applies the rules to the metrics of each step and returns the new signs.

A sign is reported once while it persists, and again if its verdict becomes worse. The guard itself takes no
action: `rag-r1 train` prints the signs (watch.py), and with `--supervise` it ends and restarts the training
(supervisor.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rag_r1.config.guard import GuardOptions
from rag_r1.training.guard.history import History
from rag_r1.training.guard.rules import RULES
from rag_r1.training.guard.signs import Sign, TrainingFacts, Verdict


class Guard:
    """Watches one run, including all of its restarts. Callers may read `history`."""

    def __init__(self, options: GuardOptions, facts: TrainingFacts | None = None):
        self.options = options
        self.facts = facts or TrainingFacts()
        self.history = History(self.facts.questions)
        #: The last step whose metrics are complete; -1 before the first.
        self.step = -1
        #: The signs that show and have been reported, with their verdicts.
        self._reported: dict[str, Verdict] = {}

    def see(self, step: int, metrics: Mapping[str, Any], *, is_whole: bool = True) -> list[Sign]:
        """Add the metrics of a step, and return the new signs, the worst first.

        `is_whole` is False for metrics of the step's batch alone, which are known before the update; those of
        the whole step follow later.
        """
        if is_whole:
            self.step = step
        elif step <= self.step:
            return []
        self.history.add(step, metrics)
        if not self.options.enabled:
            return []
        signs = [sign for rule in RULES for sign in rule(self.history, self.options, self.facts)]
        new_signs = [sign for sign in signs if sign.verdict > self._reported.get(sign.name, 0)]
        # Metrics without those of a training, as of a validation before the first step, end no sign.
        if self.history.now("search/score") is not None:
            shown = {sign.name: sign.verdict for sign in signs}
            self._reported = shown if is_whole else {**self._reported, **shown}
        return sorted(new_signs, key=lambda sign: -sign.verdict)

    def back_to(self, step: int) -> None:
        """Forget everything after `step`, from whose checkpoint the training resumes."""
        self.history.back_to(step)
        self.step = min(self.step, step)
        self._reported = {}
