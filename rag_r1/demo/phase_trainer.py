"""Trains a tiny policy on batches of weighted rows, in phases of supervised learning.

A row consists of token ids with a loss weight for each. The callers make the rows: warm_start.py for the
demo's policies, and pipeline/pretrain.py for the base of the pipeline. Each phase has its own learning rates.
`train` runs one phase; `train_resumable` runs several, and saves its state, so that an interrupted training
can be resumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm
from transformers import Qwen2ForCausalLM

from rag_r1.io.atomic_files import atomic_file

#: (token ids, loss weight of each token).
Row = tuple[list[int], list[float]]
#: Name of the file with the state of an unfinished training.
PROGRESS = "progress.pt"
#: Number of steps after which the state is saved again.
SAVE_INTERVAL = 50
#: The attributes of PhaseTrainer that are lists with one item for each optimizer.
_PER_OPTIMIZER = ("optimizers", "schedules")


@dataclass(frozen=True)
class TrainingPhase:
    """The length and the learning rates of a phase: linear warm-up, then cosine decay to 2 % of the rates.

    Muon trains the matrices of the layers, and AdamW the embeddings and norms. The model then learns to copy
    in a third of the steps that AdamW alone needs.
    """

    steps: int
    #: Number of steps of the warm-up; fewer than `steps`.
    warmup: int
    #: Learning rate of AdamW.
    lr: float
    #: Learning rate of Muon.
    matrix_lr: float


class PhaseTrainer:
    """Trains a model through one phase, a step at a time; its state can be saved and loaded."""

    def __init__(self, model: Qwen2ForCausalLM, phase: TrainingPhase):
        self.model, self.phase = model, phase
        matrices = [each for name, each in model.named_parameters() if each.ndim == 2 and "embed" not in name]
        others = [each for name, each in model.named_parameters() if each.ndim != 2 or "embed" in name]
        self.optimizers = [
            torch.optim.Muon(matrices, lr=phase.matrix_lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=phase.lr, betas=(0.9, 0.98), weight_decay=0.01),
        ]
        # With a lambda: LambdaLR would save the attributes of a callable object with its state.
        self.schedules = [LambdaLR(item, lambda step: self._rate_factor(step)) for item in self.optimizers]

    def step(self, rows: Sequence[Row]) -> float:
        """Train the model on a batch; returns the loss, which is the weighted mean over all targets."""
        self.model.zero_grad()
        total_weight = sum(sum(weights[1:]) for _, weights in rows)
        rows = sorted(rows, key=lambda row: len(row[0]))
        total_loss = 0.0
        for start in range(0, len(rows), 8):  # a few at a time, sorted by length, to save padding
            loss = _loss(self.model, rows[start : start + 8]) / total_weight
            loss.backward()
            total_loss += loss.item()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, schedule in zip(self.optimizers, self.schedules, strict=True):
            optimizer.step()
            schedule.step()
        return total_loss

    def state(self) -> dict[str, Any]:
        """Return the state for `load`: weights, optimizers and schedules, as tensors and plain values."""
        states = {name: [item.state_dict() for item in getattr(self, name)] for name in _PER_OPTIMIZER}
        return {"model": self.model.state_dict(), **states}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state` has returned."""
        self.model.load_state_dict(state["model"])
        for name in _PER_OPTIMIZER:
            for item, saved in zip(getattr(self, name), state[name], strict=True):
                item.load_state_dict(saved)

    def _rate_factor(self, step: int) -> float:
        """Return the factor of the learning rates at a step."""
        phase = self.phase
        if step < phase.warmup:
            return (step + 1) / phase.warmup
        share = (step - phase.warmup) / (phase.steps - phase.warmup)
        return 0.02 + 0.98 * (0.5 + 0.5 * math.cos(share * math.pi))


def train(model: Qwen2ForCausalLM, batches: Iterator[list[Row]], phase: TrainingPhase, name: str) -> None:
    """Train `model` in place through one phase. `name` is the label of the progress bar."""
    trainer = PhaseTrainer(model, phase)
    model.train()
    average_loss = 0.0
    progress = tqdm(batches, total=phase.steps, desc=name, unit="step", mininterval=5)
    for step, rows in enumerate(progress):
        loss = trainer.step(rows)
        average_loss = loss if step == 0 else 0.98 * average_loss + 0.02 * loss
        progress.set_postfix(loss=f"{average_loss:.3f}", refresh=False)
    model.eval()


def train_resumable(
    model: Qwen2ForCausalLM,
    phases: Sequence[TrainingPhase],
    rows_of: Callable[[int, int], Sequence[Row]],
    progress: Path,
    name: str,
) -> None:
    """Train `model` in place through all phases, or resume an interrupted training.

    `rows_of` returns the rows for the index of a phase and the index of a step in it. After every
    `SAVE_INTERVAL` steps, and at the end of a phase, the state is written to the file `progress`. The file
    contains only tensors and numbers, and is read with `weights_only`. The caller removes it when the policy
    has been written.
    """
    # `part` is the index of the phase, and `step` the number of its steps that are done.
    state = torch.load(progress, weights_only=True) if progress.exists() else {"part": 0, "step": 0}
    model.train()
    with tqdm(total=sum(phase.steps for phase in phases), desc=name, unit="step", mininterval=5) as bar:
        for index, phase in enumerate(phases):
            trainer = PhaseTrainer(model, phase)
            first_step = phase.steps if index < state["part"] else 0
            if index == state["part"] and state["step"]:
                trainer.load(state["state"])
                first_step = state["step"]
            bar.update(first_step)
            for step in range(first_step, phase.steps):
                loss = trainer.step(rows_of(index, step))
                bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
                bar.update()
                if (step + 1) % SAVE_INTERVAL == 0 or step + 1 == phase.steps:
                    with atomic_file(progress) as file:
                        torch.save({"part": index, "step": step + 1, "state": trainer.state()}, file)
    model.eval()


def _loss(model: Qwen2ForCausalLM, rows: Sequence[Row]) -> torch.Tensor:
    """Return the weighted cross-entropy of some rows, summed over their tokens.

    The rows are padded on the right, where a causal model needs no attention mask.
    """
    length = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([row + [0] * (length - len(row)) for row, _ in rows])
    weights = torch.tensor([weight + [0.0] * (length - len(weight)) for _, weight in rows])[:, 1:]
    logits = model(ids).logits[:, :-1]
    losses = cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1), reduction="none")
    return (losses * weights.reshape(-1)).sum()
