"""The retriever's loss: InfoNCE over hard and in-batch negatives, without known positives.

For a query q with its positive passage p, and D the passages of all rows of the batch on all devices,

    L = -log  exp(cos(q, p) / t)  /  sum over d in D' of exp(cos(q, d) / t)

D' is D without the passages that are known to answer q: those of which a training row says so (the positives
of the same text of a query), by their ids. Otherwise the second gold passage of a question, or a popular
passage that is the positive of one row and a mined negative of another, would be pushed away from a query
that it answers. sentence-transformers has this loss (MultipleNegativesRankingLoss), but it knows texts and no
ids; its batch sampler can only keep equal texts out of a batch. So the passes over the model, with or without
gradient cache, and the exchange between devices are the library's, and the formula is `info_nce` here.

With `rank_weight` the order of a row's own passages counts, too: the divergence of softmax(cos / t) from
softmax(LR / rank_temperature) over them, with LR the local relevance from 0 to 1 (Agentic-R's
`local_utility`).

Cosines, logits and the sums are computed in float32, whatever the model computes in: at t = 0.01 the logits
reach 100, of which bfloat16 keeps two digits.
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

#: Fills up rows of `BatchTable.all_positives`; no passage has this number.
NO_PASSAGE = -1


@dataclass(frozen=True)
class BatchTable:
    """The training rows as the loss needs them, without texts. A label is the number of a row; rows with the
    same text of the query have the same number of a query.

    passages    (rows, passages) int64: numbers of a row's passages, the positive one first
    queries     (rows,) int64: number of the row's query
    positives   (pairs,) int64: passages known to answer query 0, then those of query 1, ...
    offsets     (queries + 1,) int64: where the positives of each query begin, and where the last ones end
    relevance   (rows, passages) float32: LR of the row's passages, from 0 to 1
    """

    passages: Tensor
    queries: Tensor
    positives: Tensor
    offsets: Tensor
    relevance: Tensor

    @classmethod
    def of(
        cls,
        passages: Sequence[Sequence[int]],
        queries: Sequence[int],
        positives: Sequence[Sequence[int]],
        relevance: Sequence[Sequence[float]],
    ) -> BatchTable:
        """The table of lists: the passages and the query of each row, the positives of each query by its
        number, and the relevance of each row's passages."""
        offsets = [0, *accumulate(map(len, positives))]
        return cls(
            torch.tensor(passages),
            torch.tensor(queries),
            torch.tensor([number for row in positives for number in row], dtype=torch.long),
            torch.tensor(offsets),
            torch.tensor(relevance),
        )

    def all_positives(self, labels: Tensor) -> Tensor:
        """The numbers of all passages known to answer the query of each of these rows, (rows, most positives
        of a query); shorter rows are filled up with NO_PASSAGE."""
        query = self.queries[labels]
        start, end = self.offsets[query], self.offsets[query + 1]
        positions = start[:, None] + torch.arange(int((end - start).max()), device=labels.device)
        numbers = self.positives[positions.clamp(max=len(self.positives) - 1)]
        return numbers.masked_fill(positions >= end[:, None], NO_PASSAGE)


def info_nce(
    queries: Tensor, passages: Tensor, numbers: Tensor, targets: Tensor, positives: Tensor, temperature: float
) -> Tensor:
    """The loss of each query, (queries,), in float32.

    queries     (queries, dimension)
    passages    (all, dimension): of the whole batch
    numbers     (all,): the number of each passage
    targets     (queries,): the position in `passages` of each query's positive
    positives   (queries, any): numbers of the passages known to answer each query
    """
    logits = cosines(queries, passages) / temperature
    is_positive = (numbers[None, :, None] == positives[:, None, :]).any(-1)
    is_positive[torch.arange(len(targets), device=targets.device), targets] = False
    return functional.cross_entropy(logits.masked_fill(is_positive, -torch.inf), targets, reduction="none")


def rank_loss(cosine: Tensor, relevance: Tensor, temperature: float, rank_temperature: float) -> Tensor:
    """The divergence of each query's order of its own passages from that by relevance, (queries,).

    `cosine`, `relevance`: (queries, passages).
    """
    expected = functional.log_softmax(relevance.float() / rank_temperature, dim=-1)
    actual = functional.log_softmax(cosine.float() / temperature, dim=-1)
    return functional.kl_div(actual, expected, reduction="none", log_target=True).sum(-1)


def cosines(queries: Tensor, passages: Tensor) -> Tensor:
    """The cosine of each query with each passage, (queries, passages), in float32, also under autocast."""
    with torch.autocast(queries.device.type, enabled=False):
        left, right = (functional.normalize(vectors.float(), dim=-1) for vectors in (queries, passages))
        return left @ right.T


class RetrieverLoss(CachedLossMixin, nn.Module):
    """The loss for sentence-transformers' trainer: `info_nce`, and `rank_loss` with the weight `rank_weight`.
    Columns of a batch are the query, its positive, its negatives; the label of a row is its number in the
    table. `mini_batch`: texts that are in the model at once (gradient cache, arXiv 2101.06983); None: the
    whole batch."""

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
        """The table on the device of the model."""
        return BatchTable(**{field.name: getattr(self, field.name) for field in fields(BatchTable)})

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """The mean loss of this device's rows."""
        features = list(sentence_features)
        if self.uses_gradient_cache:
            return self.forward_cached(features, labels)
        return self.of_embeddings(embed_columns(self.model, features), labels)

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The loss of embeddings that come in parts: the gradient cache calls this."""
        assert labels is not None  # the signature is the library's; our rows always have labels
        loss = self.of_embeddings([torch.cat(parts) for parts in reps], labels)
        if with_backward:
            loss.backward()
        return loss.detach() if with_backward else loss

    def of_embeddings(self, columns: list[Tensor], labels: Tensor) -> Tensor:
        """The mean loss of this device's rows. `columns`: the embeddings of the queries, of the positives and
        of each negative, (rows, dimension) each; `labels`: (rows,)."""
        queries, *documents = columns
        table = self.table
        rows, passages = labels, torch.cat(documents)
        if get_world_size() > 1:
            rows = all_gather(labels)
            passages = torch.cat([all_gather_with_grad(column) for column in documents])
        targets = torch.arange(len(labels), device=queries.device) + get_rank() * len(labels)
        numbers = table.passages[rows].T.reshape(-1)  # column by column, as the passages are
        losses = info_nce(queries, passages, numbers, targets, table.all_positives(labels), self.temperature)
        if self.rank_weight:
            ranked = torch.stack(documents, 1)
            with torch.autocast(queries.device.type, enabled=False):
                cosine = functional.cosine_similarity(queries.float()[:, None], ranked.float(), dim=-1)
            relevance = table.relevance[labels]
            divergence = rank_loss(cosine, relevance, self.temperature, self.rank_temperature)
            losses = losses + self.rank_weight * divergence
        return losses.mean()
