"""Trains a demo policy on scripted episodes, generated anew for each step.

The rows are those of a real episode's ledger, so supervised training and reinforcement learning have the same
contexts, token by token. A training that was killed goes on after the last progress that was saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from rag_r1.agent import TrainingRow
from rag_r1.demo.phase_trainer import PhaseTrainer, Row, TrainingPhase
from rag_r1.demo.pipeline.pretrain import PROGRESS, SAVED_EVERY, save_progress
from rag_r1.demo.policy import save_policy
from rag_r1.demo.warm_start import base_weights
from rag_r1.io.atomic_files import move_into_place


def train_policy(
    folder: Path,
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    part: TrainingPhase,
    rows_of: Callable[[int], Sequence[Row]],
) -> Path:
    """Train on the rows of each step, in place, and write the policy into `folder`, which is whole or not
    there (meanwhile it is `folder`.part); returns the folder."""
    training = PhaseTrainer(model, part)
    unfinished = folder.with_name(f"{folder.name}.part")
    unfinished.mkdir(parents=True, exist_ok=True)
    progress = unfinished / PROGRESS
    first = 0
    if progress.exists():
        saved = torch.load(progress, weights_only=True)
        training.load(saved["state"])
        first = saved["step"]
    model.train()
    with tqdm(total=part.steps, initial=first, desc=folder.name, unit="step", mininterval=5) as bar:
        for step in range(first, part.steps):
            loss = training.step(rows_of(step))
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            bar.update()
            if (step + 1) % SAVED_EVERY == 0:
                save_progress(progress, {"step": step + 1, "state": training.state()})
    model.eval()
    save_policy(unfinished, model, tokenizer)
    move_into_place(unfinished, folder)
    (folder / PROGRESS).unlink(missing_ok=True)
    return folder


def loss_weights(row: TrainingRow, names: frozenset[int]) -> Row:
    """(ids, loss weights) of a row: 1 for what the script wrote, less (sft.COPY_WEIGHT) for the tokens
    `names` elsewhere that occurred before in the row: reading passages is to be learned as well."""
    ids, mask = row.prompt_ids + row.response_ids, [0] * len(row.prompt_ids) + row.response_mask
    weights = zip(ids, mask, base_weights(ids, mask), strict=True)
    return ids, [weight if bit or token in names else 0.0 for token, bit, weight in weights]
