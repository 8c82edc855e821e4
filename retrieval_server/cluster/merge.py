"""Merges the hits of all shards into those of the whole index."""

from __future__ import annotations

from collections.abc import Sequence

from retrieval_server.source import ScoredPassage, round_score


def merge(hits_by_shard: Sequence[Sequence[ScoredPassage]], topk: int) -> tuple[ScoredPassage, ...]:
    """Return the `topk` best of one query's hits from all shards, best first.

    `hits_by_shard` has a list for each shard, in the row order of the shards. Each list is sorted, best
    first, and has unrounded scores. The sort is stable, so that equal scores stay in corpus order.
    """
    all_hits = [hit for hits in hits_by_shard for hit in hits]
    return tuple(round_score(hit) for hit in sorted(all_hits, key=lambda hit: -hit.score)[:topk])
