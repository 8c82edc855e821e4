"""The data set of SFT rows for veRL's SFT trainer, which the recipes name in `data.custom_cls`.

veRL's own data set renders each message with the chat template and trains on whole assistant messages. Here
an episode is one assistant message in which turns and observations alternate. So veRL's mask would train on
the text of documents, and the template would add an end of turn that no rollout contains. This data set takes
the tokens and the mask from `SftTokens` (rag_r1/data/sft_tokens.py), so the loss covers exactly the trained
pieces.

A row has the fields that veRL's trainer takes without padding: `input_ids`, `position_ids` and `loss_mask`,
each of shape (tokens,), as int64. veRL's loss shifts the mask by one over the whole micro-batch
(verl/workers/utils/losses.py, `sft_loss`), so the first token of a row, which belongs to the prompt, must not
be trained. A row is never truncated: if it is longer than `data.max_length`, an error names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from omegaconf import ListConfig
from torch.utils.data import Dataset

from rag_r1.data.sft_rows import read_sft_rows
from rag_r1.data.sft_tokens import SftTokens, protocol_of_rows
from rag_r1.io.errors import DataError
from rag_r1.options.problems import plain


class SftDataset(Dataset):
    """The rows that `rag-r1 sft-data` wrote, as tokens. veRL passes its block `data` as `config`.

    `protocol` in that block is the name or the file of the protocol, by default the one that the rows name,
    and `max_length` is veRL's limit of a row in tokens, by default 1024 as in veRL. `max_samples` limits the
    number of rows, -1 takes all. `processor` is part of veRL's signature and unused. Raises DataError for
    files and rows that cannot be used.
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
        """Return `input_ids`, `position_ids` and `loss_mask` of a row, each of shape (tokens,). Raises
        DataError if the row is too long or has no prompt."""
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
