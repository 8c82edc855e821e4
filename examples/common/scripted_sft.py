"""Trains a demo policy on scripted episodes, generated anew for each step.

The rows are those of a real episode's ledger, so supervised training and reinforcement learning have the same
contexts, token by token. A training that was killed goes on after the last progress that was saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from rag_r1.agent import TrainingRow
from rag_r1.demo.phase_trainer import PROGRESS, Row, TrainingPhase, train_resumable
from rag_r1.demo.pipeline.pretrain import weights_of
from rag_r1.demo.policy import save_policy
from rag_r1.io.atomic_files import move_into_place


def train_policy(
    folder: Path,
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    phase: TrainingPhase,
    rows_of: Callable[[int], Sequence[Row]],
) -> Path:
    """Train a model in place, on the rows that `rows_of` returns for each step, and write it into `folder`,
    all or nothing (meanwhile the progress is in `folder`.part); returns the folder."""
    unfinished = folder.with_name(f"{folder.name}.part")
    unfinished.mkdir(parents=True, exist_ok=True)
    train_resumable(model, [phase], lambda _, step: rows_of(step), unfinished / PROGRESS, folder.name)
    save_policy(unfinished, model, tokenizer)
    move_into_place(unfinished, folder)
    (folder / PROGRESS).unlink(missing_ok=True)
    return folder


def loss_weights(row: TrainingRow, names: frozenset[int]) -> Row:
    """The ids of a row's tokens, and the weight of each in the loss: 1 for what the script wrote, and less,
    but not 0, for the tokens `names` that occurred earlier in the row: reading passages is to be learned as
    well."""
    ids, mask = row.prompt_ids + row.response_ids, [0] * len(row.prompt_ids) + row.response_mask
    return ids, weights_of(ids, mask, names)
