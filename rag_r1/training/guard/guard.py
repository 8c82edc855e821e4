"""The guard of a training: it is given the metrics of each step and says which signs are new.

A sign is reported once for as long as it shows, and again when its verdict becomes worse. The guard acts on
nothing: `rag-r1 train` prints what it says, and with `--supervise` ends and restarts the training
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
    """Watches one run, over all of its starts. `history` may be read."""

    def __init__(self, options: GuardOptions, facts: TrainingFacts | None = None):
        self.options = options
        self.facts = facts or TrainingFacts()
        self.history = History(self.facts.questions)
        #: The last step of which all is known.
        self.step = -1
        self._reported: dict[str, Verdict] = {}

    def see(self, step: int, metrics: Mapping[str, Any], *, is_whole: bool = True) -> list[Sign]:
        """Adds the metrics of a step; returns the new signs, the worst first. `is_whole`: False if the step's
        batch is complete and no more is known of it; the whole step follows."""
        if is_whole:
            self.step = step
        elif step <= self.step:
            return []
        self.history.add(step, metrics)
        if not self.options.enabled:
            return []
        signs = [sign for rule in RULES for sign in rule(self.history, self.options, self.facts)]
        new_signs = [sign for sign in signs if sign.verdict > self._reported.get(sign.name, 0)]
        # A step with no metrics of a training, such as a validation at the start, ends no sign.
        if self.history.now("search/score") is not None:
            shown = {sign.name: sign.verdict for sign in signs}
            self._reported = shown if is_whole else {**self._reported, **shown}
        return sorted(new_signs, key=lambda sign: -sign.verdict)

    def back_to(self, step: int) -> None:
        """Forgets what came after this step, from whose checkpoint the training goes on."""
        self.history.back_to(step)
        self.step = min(self.step, step)
        self._reported = {}
