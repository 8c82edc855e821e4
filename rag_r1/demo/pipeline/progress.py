"""A progress bar for the fine-tuning, read from the trainer's log."""

from __future__ import annotations

import json
from pathlib import Path

from tqdm import tqdm


class SftProgressBar:
    """A progress bar over the file in which veRL's SFT trainer logs a line for each step; `loss` is the
    validation's last."""

    def __init__(self, metrics: Path, steps: int):
        self.metrics = metrics
        self.loss: float | None = None
        self._bar = tqdm(total=steps, desc="sft", unit="step", mininterval=5)

    def __enter__(self) -> SftProgressBar:
        return self

    def __exit__(self, *unused: object) -> None:
        self._bar.close()

    def update(self) -> None:
        """Show the last step."""
        lines = self.metrics.read_bytes().split(b"\n")[:-1] if self.metrics.exists() else []
        logged = [json.loads(line) for line in lines]
        steps = [entry for entry in logged if "train/loss" in entry["data"]]
        self.loss = next(
            (e["data"]["val/loss"] for e in reversed(logged) if "val/loss" in e["data"]), self.loss
        )
        if steps and int(steps[-1]["step"]) > self._bar.n:
            self._bar.set_postfix(loss=f"{steps[-1]['data']['train/loss']:.3f}", refresh=False)
            self._bar.update(int(steps[-1]["step"]) - self._bar.n)
