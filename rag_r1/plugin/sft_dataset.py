"""A data set of SFT rows with provenance for veRL's SFT trainer; `data.custom_cls` names it.

veRL's own data set renders each message with the chat template and trains whole assistant messages. Here an
episode is one assistant message in which turns and observations alternate, so that mask would train document
text, and the template would add an end of turn that no rollout contains. This data set takes tokens and mask
from `SftTokens` (rag_r1/data/sft_rows.py): the loss covers exactly the tokens of trained pieces.

It gives veRL what its trainer takes without padding: `input_ids`, `position_ids` and `loss_mask`, each of
shape (tokens,), as int64. veRL's loss shifts the mask by one over the whole micro batch
(verl/workers/utils/losses.py, `sft_loss`), so the first token of a row must have weight 0; it is part of the
prompt. A row is never truncated: one that is longer than `data.max_length` is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from omegaconf import ListConfig
from torch.utils.data import Dataset

from rag_r1.data.sft_rows import SftTokens, protocol_of_rows, read_sft_rows
from rag_r1.io.errors import DataError
from rag_r1.options.problems import plain


class SftDataset(Dataset):
    """Rows that `rag-r1 sft-data` wrote, as tokens; veRL calls it with its keys `data`.

    `data.protocol` is the name or the file of the protocol; by default the one that the rows name.
    `data.max_length` is veRL's limit in tokens, 1024 as in its configuration if it is not set. `max_samples`:
    only the first so many rows; -1: all. `processor` is part of veRL's signature and unused. Raises DataError
    for files and rows that cannot be used.
    """

    def __init__(
        self,
        parquet_files: str | Sequence[str],
        tokenizer: Any,
        config: Mapping[str, Any],
        processor: Any = None,
        max_samples: int = -1,
    ):
        if config.get("pad_mode", "no_padding") != "no_padding":
            raise DataError("data.pad_mode must be no_padding: veRL's engines take nothing else")
        if config.get("truncation", "error") != "error":
            raise DataError("data.truncation must be error: a cut row is not what a rollout sees")
        files = list(parquet_files) if isinstance(parquet_files, list | ListConfig) else [parquet_files]
        self.rows = [row for file in files for row in read_sft_rows(file)]
        if 0 < max_samples < len(self.rows):
            self.rows = self.rows[:max_samples]
        if not self.rows:
            raise DataError(f"{', '.join(map(str, files))}: no rows: make them with `rag-r1 sft-data`")
        template = plain(config.get("apply_chat_template_kwargs")) or {}
        self.tokens = SftTokens(tokenizer, protocol_of_rows(self.rows, config.get("protocol")), template)
        self.max_length = int(config.get("max_length", 1024))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, item: int) -> dict[str, torch.Tensor]:
        """`input_ids`, `position_ids` and `loss_mask`, each of shape (tokens,)."""
        row = self.rows[item]
        tokens = self.tokens(row)
        length = len(tokens.ids)
        if length > self.max_length:
            raise DataError(
                f"the row {row.id!r} has {length} tokens, more than data.max_length={self.max_length}:"
                " raise it, or make data with shorter rows"
            )
        if tokens.mask[0]:
            raise DataError(
                f"the first token of row {row.id!r} is trained, so it has no prompt: write the rows again"
                " with `rag-r1 sft-data`"
            )
        return {
            "input_ids": torch.tensor(tokens.ids),
            "position_ids": torch.arange(length),
            "loss_mask": torch.tensor(tokens.mask),
        }
