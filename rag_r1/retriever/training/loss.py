"""Computes the retriever's loss: InfoNCE over hard and in-batch negatives, without known positives.

For a query q with its positive passage p, where D are the passages of all rows of the batch on all devices,

    L = -log  exp(cos(q, p) / t)  /  sum over d in D' of exp(cos(q, d) / t)

D' is D without the other passages that are known to answer q, which are the positives of all training rows
with the same query text. They are identified by their ids. If they stayed in D', the second gold passage of a
question, or a popular passage that is the positive of one row and a mined negative of another, would be
pushed away from a query that it answers.

sentence-transformers has such a loss (MultipleNegativesRankingLoss), but it sees texts without ids, and its
batch sampler can only keep equal texts out of a batch. So this module takes the passes over the model, with
or without gradient cache, and the exchange between devices from the library, and computes the formula itself
(`info_nce`).

With `rank_weight`, the order of a row's own passages is part of the loss as well: the divergence of
softmax(cos / t) from softmax(LR / rank_temperature) over these passages, where LR is the local relevance from
0 to 1 (Agentic-R's `local_utility`).

Cosines, logits and sums are computed in float32, whatever the precision of the model: at t = 0.01 the logits
reach 100, where bfloat16 has a resolution of only 0.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any

import torch
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from sentence_transformers.base.losses.merged_forward import embed_columns
from sentence_transformers.util import all_gather, all_gather_with_grad, get_rank, get_world_size
from torch import Tensor, nn
from torch.nn import functional

#: Padding in the rows of `BatchTable.all_positives`; no passage has this number.
NO_PASSAGE = -1


@dataclass(frozen=True)
class BatchTable:
    """The training rows as the loss needs them, without texts. Rows, queries and passages are numbered from
    0; rows with the same query text have the same query number."""

    #: (rows, passages) int64: the numbers of each row's passages, the positive one first.
    passages: Tensor
    #: (rows,) int64: the number of each row's query.
    queries: Tensor
    #: (pairs,) int64: the passages known to answer query 0, then those of query 1, and so on.
    positives: Tensor
    #: (queries + 1,) int64: where the positives of each query begin in `positives`, and where the last end.
    offsets: Tensor
    #: (rows, passages) float32: the LR of each row's passages, from 0 to 1.
    relevance: Tensor

    @classmethod
    def of(
        cls,
        passages: Sequence[Sequence[int]],
        queries: Sequence[int],
        positives: Sequence[Sequence[int]],
        relevance: Sequence[Sequence[float]],
    ) -> BatchTable:
        """Build the table from lists: the passages and the query of each row, the positives of each query in
        the order of the query numbers, and the relevance of each row's passages."""
        offsets = [0, *accumulate(map(len, positives))]
        return cls(
            torch.tensor(passages),
            torch.tensor(queries),
            torch.tensor([number for numbers in positives for number in numbers], dtype=torch.long),
            torch.tensor(offsets),
            torch.tensor(relevance),
        )

    def all_positives(self, labels: Tensor) -> Tensor:
        """Return the numbers of all passages known to answer the queries of these rows, as a tensor (rows,
        most positives of a query) that is padded with NO_PASSAGE."""
        query = self.queries[labels]
        start, end = self.offsets[query], self.offsets[query + 1]
        positions = start[:, None] + torch.arange(int((end - start).max()), device=labels.device)
        numbers = self.positives[positions.clamp(max=len(self.positives) - 1)]
        return numbers.masked_fill(positions >= end[:, None], NO_PASSAGE)


def info_nce(
    queries: Tensor, passages: Tensor, numbers: Tensor, targets: Tensor, positives: Tensor, temperature: float
) -> Tensor:
    """Return the loss of each query, (queries,), in float32.

    queries     (queries, dimension): the embeddings of the queries
    passages    (all, dimension): the embeddings of all passages of the batch
    numbers     (all,): the number of each passage
    targets     (queries,): the position of each query's positive in `passages`
    positives   (queries, any): the numbers of all passages known to answer each query
    """
    logits = cosines(queries, passages) / temperature
    is_excluded = (numbers[None, :, None] == positives[:, None, :]).any(-1)
    is_excluded[torch.arange(len(targets), device=targets.device), targets] = False
    return functional.cross_entropy(logits.masked_fill(is_excluded, -torch.inf), targets, reduction="none")


def rank_loss(cosine: Tensor, relevance: Tensor, temperature: float, rank_temperature: float) -> Tensor:
    """Return the divergence (queries,) of the distribution of each row's passages by cosine from their
    distribution by relevance. `cosine` and `relevance` are both (queries, passages)."""
    expected = functional.log_softmax(relevance.float() / rank_temperature, dim=-1)
    actual = functional.log_softmax(cosine.float() / temperature, dim=-1)
    return functional.kl_div(actual, expected, reduction="none", log_target=True).sum(-1)


def cosines(queries: Tensor, passages: Tensor) -> Tensor:
    """Return the cosine of each query with each passage, (queries, passages), in float32 even in autocast."""
    with torch.autocast(queries.device.type, enabled=False):
        query_units = functional.normalize(queries.float(), dim=-1)
        return query_units @ functional.normalize(passages.float(), dim=-1).T


class RetrieverLoss(CachedLossMixin, nn.Module):
    """The loss module for sentence-transformers' trainer: `info_nce` plus `rank_weight` times `rank_loss`.

    The columns of a batch are the query, its positive, and its negatives. The label of a row is its number in
    the table.
    """

    def __init__(
        self,
        model: Any,
        table: BatchTable,
        *,
        temperature: float = 0.01,
        rank_weight: float = 0.0,
        rank_temperature: float = 0.1,
        mini_batch: int | None = None,
    ):
        """`temperature` (t), `rank_weight` and `rank_temperature` are those of the formulas at the top.
        `mini_batch` is the number of texts that pass through the model at once (gradient cache, arXiv
        2101.06983); None stands for the whole batch."""
        super().__init__()
        self.model = model
        # Buffers, so that they move to the model's device once; they are not part of a checkpoint.
        for name, tensor in vars(table).items():
            self.register_buffer(name, tensor, persistent=False)
        self.temperature, self.rank_weight = temperature, rank_weight
        self.rank_temperature = rank_temperature
        self.mini_batch_size = mini_batch or 0
        self.uses_gradient_cache = mini_batch is not None

    @property
    def table(self) -> BatchTable:
        """The table given to the constructor, on the device of the model."""
        return BatchTable(**{field.name: getattr(self, field.name) for field in fields(BatchTable)})

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """Return the mean loss of this device's rows."""
        features = list(sentence_features)
        if self.uses_gradient_cache:
            return self.forward_cached(features, labels)
        return self.of_embeddings(embed_columns(self.model, features), labels)

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """Return the loss for embeddings that are split into mini-batches. The gradient cache calls this."""
        assert labels is not None  # the signature is the library's; our rows always have labels
        loss = self.of_embeddings([torch.cat(parts) for parts in reps], labels)
        if with_backward:
            loss.backward()
        return loss.detach() if with_backward else loss

    def of_embeddings(self, columns: list[Tensor], labels: Tensor) -> Tensor:
        """Return the mean loss of this device's rows. `columns` has the embeddings of the queries, of the
        positives, and of each negative, (rows, dimension) each; `labels` is (rows,)."""
        queries, *documents = columns
        table = self.table
        rows, passages = labels, torch.cat(documents)
        if get_world_size() > 1:
            rows = all_gather(labels)
            passages = torch.cat([all_gather_with_grad(column) for column in documents])
        targets = torch.arange(len(labels), device=queries.device) + get_rank() * len(labels)
        numbers = table.passages[rows].T.reshape(-1)  # column by column, in the order of `passages`
        losses = info_nce(queries, passages, numbers, targets, table.all_positives(labels), self.temperature)
        if self.rank_weight:
            ranked = torch.stack(documents, 1)
            with torch.autocast(queries.device.type, enabled=False):
                cosine = functional.cosine_similarity(queries.float()[:, None], ranked.float(), dim=-1)
            divergence = rank_loss(cosine, table.relevance[labels], self.temperature, self.rank_temperature)
            losses = losses + self.rank_weight * divergence
        return losses.mean()
