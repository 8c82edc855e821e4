"""Shows a progress bar for a fine-tuning that runs in another process, by reading the trainer's log."""

from __future__ import annotations

import json
from pathlib import Path

from tqdm import tqdm


class SftProgressBar(tqdm):
    """A progress bar for the steps of a fine-tuning.

    `metrics` is the file in which veRL's SFT trainer logs a JSON line for each step.
    """

    def __init__(self, metrics: Path, steps: int):
        super().__init__(total=steps, desc="sft", unit="step", mininterval=5)
        self.metrics = metrics
        #: The loss of the last validation.
        self.loss: float | None = None

    def read(self) -> None:
        """Read the log, and show its last step."""
        try:
            lines = self.metrics.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:  # not begun, or set aside by a trainer that begins a new one
            return
        for entry in map(json.loads, lines):
            self.loss = entry["data"].get("val/loss", self.loss)
            if "train/loss" in entry["data"] and int(entry["step"]) > self.n:
                self.set_postfix(loss=f"{entry['data']['train/loss']:.3f}", refresh=False)
                self.update(int(entry["step"]) - self.n)
