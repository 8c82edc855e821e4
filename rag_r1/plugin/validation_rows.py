"""Excludes masked trajectories from the means of a validation, and reports how many there were.

veRL averages the scores of all trajectories of a validation. The score of a masked trajectory, one with a
failure that the configuration key `rag_r1.failures.mask` names, is unknown and recorded as 0, so an outage of
the search engine would look like a worse policy. Therefore the sampler passes the batch of a validation
through `drop_masked_rows`, which removes all rows of masked trajectories. `val-core` and `val-aux` are then
means over the judged trajectories.

The number of lost trajectories stays visible: it is logged, and in the remaining trajectories `masked` and
`failed_<kind>` are replaced by their shares in the same data source of that batch. So
`val-aux/<source>/masked/mean@1` is the same as before the removal, as long as one trajectory of the source is
judged. If all trajectories of a source are masked, but not those of every source, this source has no metrics
in the validation; only the log reports its loss.

With several answers to a question (`val_kwargs.n`), veRL puts the number of answers into the name of a mean.
A question that has lost an answer is therefore counted under another name (mean@3 beside mean@4).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Any

from rag_r1.plugin.group_filter import reward_info
from rag_r1.plugin.sample_store import KVBatchMeta, plain_value, read_rows, remove_rows, write_rows
from rag_r1.plugin.sessions import last_rows, session_of

logger = logging.getLogger(__name__)


def drop_masked_rows(batch: KVBatchMeta) -> KVBatchMeta:
    """Remove the masked trajectories of a validation batch from the store, write their shares into the
    others, and return the batch of the others.

    If all trajectories of the batch are masked, they stay, because veRL's validation needs rows; the log says
    that its numbers are meaningless.
    """
    rows = last_rows(batch.keys)  # veRL takes a trajectory's result from its last row
    if not rows:
        return batch
    data = read_rows(rows, batch.partition_id, ["extra_fields", "data_source"])
    fields = [plain_value(value) for value in data["extra_fields"]]
    sources = [str(plain_value(value)) for value in data["data_source"]]
    infos = [reward_info(value) for value in fields]
    masked = [bool(info.get("masked")) for info in infos]
    if not any(masked):
        return batch
    shares = _shares(infos, sources)
    logger.error(
        "validation: %d of %d trajectories were lost to failures that rag_r1.failures.mask names (%s); %s",
        sum(masked),
        len(masked),
        "; ".join(f"{source}: {_describe(share)}" for source, share in shares.items() if share.get("masked")),
        "its numbers are worth nothing" if all(masked) else "its means are over the others",
    )
    if all(masked):
        return batch
    judged = [i for i, is_lost in enumerate(masked) if not is_lost]
    updated = {}
    for i in judged:
        info = {**infos[i], **shares[sources[i]]}
        updated[rows[i]] = {"extra_fields": {**fields[i], "reward_extra_info": info}}
    write_rows(updated, batch.partition_id)
    judged_sessions = {session_of(rows[i]) for i in judged}
    remove_rows([key for key in batch.keys if session_of(key) not in judged_sessions], batch.partition_id)
    return batch.select_keys([key for key in batch.keys if session_of(key) in judged_sessions])


def _shares(infos: list[dict[str, Any]], sources: list[str]) -> dict[str, dict[str, float]]:
    """Return, by data source and by name, the share of the trajectories that are masked (`masked`), and that
    have each kind of failure (`failed_<kind>`)."""
    by_source: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for info, source in zip(infos, sources, strict=True):
        by_source[source].append(info)
    return {
        source: {
            name: sum(float(info.get(name) or 0) for info in group) / len(group)
            for name in {k for info in group for k in info if k == "masked" or k.startswith("failed_")}
        }
        for source, group in by_source.items()
    }


def _describe(share: dict[str, float]) -> str:
    """Return the shares of a data source that are not 0, as percentages."""
    return ", ".join(f"{name} {value:.0%}" for name, value in sorted(share.items()) if value)
