"""Merges the hits of all shards into those of the whole index."""

from __future__ import annotations

from collections.abc import Sequence

from retrieval_server.source import ScoredPassage, round_score


def merge(lists: Sequence[Sequence[ScoredPassage]], topk: int) -> tuple[ScoredPassage, ...]:
    """The ``topk`` best of one query's hits from all shards.

    ``lists`` has a list for each shard, in row order; lists are best first, with unrounded scores. The sort
    is stable, so equal scores stay in corpus order.
    """
    hits_of_all = [hit for hits in lists for hit in hits]
    return tuple(round_score(hit) for hit in sorted(hits_of_all, key=lambda hit: -hit.score)[:topk])
