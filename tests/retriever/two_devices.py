"""One of two processes that train on halves of a batch: `two_devices.py FOLDER`, with torchrun's variables.

It reads FOLDER/batch.pt, computes the loss of its half, and writes FOLDER/half<rank>.pt: the loss, and the
gradient of the model's table of vectors.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from rag_r1.retriever.training.loss import BatchTable, RetrieverLoss


class Lookup(nn.Module):
    """A model whose vectors are a table: `input_ids` are rows of it."""

    def __init__(self, vectors: torch.Tensor):
        super().__init__()
        self.vectors = nn.Parameter(vectors)

    def forward(self, features):
        return {"sentence_embedding": self.vectors[features["input_ids"][:, 0]]}


def columns(*ids: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """The features of texts whose vectors are these rows of the table."""
    return [
        {"input_ids": column[:, None], "attention_mask": torch.ones_like(column)[:, None]} for column in ids
    ]


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    batch = torch.load(folder / "batch.pt", weights_only=True)
    table = BatchTable(*batch["table"])
    rows = len(table.passages) // 2
    labels = torch.arange(rows) + rank * rows
    model = Lookup(batch["vectors"])
    loss = RetrieverLoss(model, table, temperature=0.2, mini_batch=batch["mini_batch"])
    first_query = int(table.passages.max()) + 1
    value = loss(columns(first_query + labels, *table.passages[labels].T), labels)
    value.backward()
    torch.save({"loss": value.detach(), "gradient": model.vectors.grad}, folder / f"half{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
