"""Trains a demo policy on scripted episodes, which are generated for each step.

The rows come from the ledgers of real episodes, so supervised training and reinforcement learning see the
same contexts, token by token. A training that was killed resumes from its last saved progress.
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
    """Train a model in place, on the rows that `rows_of` returns for each step, and write it into `folder`.

    The folder appears when the training is finished; until then the progress is in `folder`.part. Returns
    `folder`.
    """
    unfinished = folder.with_name(f"{folder.name}.part")
    unfinished.mkdir(parents=True, exist_ok=True)
    train_resumable(model, [phase], lambda _, step: rows_of(step), unfinished / PROGRESS, folder.name)
    save_policy(unfinished, model, tokenizer)
    move_into_place(unfinished, folder)
    (folder / PROGRESS).unlink(missing_ok=True)
    return folder


def loss_weights(row: TrainingRow, names: frozenset[int]) -> Row:
    """Return the ids of a row's tokens, and the weight of each token in the loss.

    Tokens that the script wrote have weight 1. Tokens in `names` that occurred earlier in the row have a
    smaller weight, so that the model also learns to read passages.
    """
    ids, mask = row.prompt_ids + row.response_ids, [0] * len(row.prompt_ids) + row.response_mask
    return ids, weights_of(ids, mask, names)
