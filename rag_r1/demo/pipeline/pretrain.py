"""Pretrains the pipeline's base model from random weights on a CPU.

As for the demo's own policies (rag_r1/demo/warm_start.py), there are two phases. The first begins with
one-hop questions only and goes on to all kinds; the second has more questions with two facts. The rows come
from pretraining_data.py. The loss is on what the policy writes and, with a smaller weight, on names and years
in the prompt and the sentences that have occurred before, since nothing else teaches this model to copy.

Until the policy is written, its folder has the state of the training in `progress.pt`, from which an
interrupted training is resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase as TokenizerBase

from rag_r1.demo.phase_trainer import PROGRESS, Row, TrainingPhase, train_resumable
from rag_r1.demo.pipeline.pretraining_data import batch, name_tokens, pretraining_tokenizer
from rag_r1.demo.policy import make_policy, save_policy
from rag_r1.demo.warm_start import (
    ONE_HOP_STEPS,
    SECOND_KINDS,
    UNSEARCHED_FIRST,
    UNSEARCHED_SECOND,
    base_weights,
)
from rag_r1.demo.world import KINDS
from rag_r1.protocols import Protocol

#: Number of steps of both phases together.
STEPS = UNSEARCHED_FIRST.steps + UNSEARCHED_SECOND.steps


def pretrain(folder: Path, protocol: Protocol, seed: int, steps: int = STEPS) -> Path:
    """Pretrain a policy into `folder`, unless that is finished, and return the folder.

    `steps` is the number of steps of both phases together. Raises ValueError for fewer than two.
    """
    progress = folder / PROGRESS
    if not progress.exists() and (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = pretraining_tokenizer(protocol)
    names = name_tokens(tokenizer)
    model = make_policy(tokenizer, seed)

    def weighted_rows(phase: int, step: int) -> list[Row]:
        rows = rows_of(tokenizer, protocol, seed, phase, step)
        return [(ids, weights_of(ids, mask, names)) for ids, mask in rows]

    train_resumable(model, phases_of(steps), weighted_rows, progress, "pretraining")
    save_policy(folder, model, tokenizer)
    progress.unlink()
    return folder


def phases_of(steps: int) -> list[TrainingPhase]:
    """Return the two phases with `steps` steps together. Raises ValueError for fewer than two steps."""
    if steps < 2:
        raise ValueError(f"pretraining takes at least 2 steps, not {steps}")
    first = min(max(1, round(steps * UNSEARCHED_FIRST.steps / STEPS)), steps - 1)
    return [
        replace(phase, steps=count, warmup=min(phase.warmup, count // 4))
        for phase, count in ((UNSEARCHED_FIRST, first), (UNSEARCHED_SECOND, steps - first))
    ]


def rows_of(
    tokenizer: TokenizerBase, protocol: Protocol, seed: int, phase: int, step: int
) -> list[tuple[list[int], list[int]]]:
    """Return (token ids, mask) for each row of a step; `phase` is the number of its phase, 0 or 1."""
    first_kinds = ("one_hop",) if step < ONE_HOP_STEPS else KINDS
    return batch(tokenizer, protocol, f"base-{seed}-{phase}", step, SECOND_KINDS if phase else first_kinds)


def weights_of(ids: Sequence[int], mask: Sequence[int], names: frozenset[int]) -> list[float]:
    """Return the loss weight of each token: 1 if the policy writes it, less if it is a repeated name, else 0.

    Other tokens of the sentences must not be learned, because the sentences stand where the policy's turn
    begins: the policy would learn to begin its turns with them.
    """
    return [
        weight if generated or token in names else 0.0
        for token, generated, weight in zip(ids, mask, base_weights(ids, mask), strict=True)
    ]
