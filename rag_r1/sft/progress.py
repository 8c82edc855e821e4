"""Shows the progress of the fine-tuning, from the trainer's log."""

from __future__ import annotations

import json
from pathlib import Path

from tqdm import tqdm


class SftProgressBar(tqdm):
    """A progress bar over the file in which veRL's SFT trainer logs a line for each step; `loss` is the
    last validation's."""

    def __init__(self, metrics: Path, steps: int):
        super().__init__(total=steps, desc="sft", unit="step", mininterval=5)
        self.metrics = metrics
        self.loss: float | None = None

    def read(self) -> None:
        """Read the file, and show its last step."""
        lines = self.metrics.read_bytes().split(b"\n")[:-1] if self.metrics.exists() else []
        for entry in map(json.loads, lines):
            self.loss = entry["data"].get("val/loss", self.loss)
            if "train/loss" in entry["data"] and int(entry["step"]) > self.n:
                self.set_postfix(loss=f"{entry['data']['train/loss']:.3f}", refresh=False)
                self.update(int(entry["step"]) - self.n)
