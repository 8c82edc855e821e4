"""Shows a progress bar for a fine-tuning that runs in another process, by reading the trainer's log."""

from __future__ import annotations

from pathlib import Path

from tqdm import tqdm

from rag_r1.training.metrics_files import MetricsFile


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
        # From its first line, since a training that resumes puts another file in its place.
        for step, metrics in MetricsFile(self.metrics).new_lines():
            self.loss = metrics.get("val/loss", self.loss)
            if "train/loss" in metrics and step > self.n:
                self.set_postfix(loss=f"{metrics['train/loss']:.3f}", refresh=False)
                self.update(step - self.n)
