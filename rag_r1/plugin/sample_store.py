"""veRL's store of samples, TransferQueue: all requests of RAG-R1 to it.

veRL's trainers keep the rows of a rollout in TransferQueue and pass batches of keys around (`KVBatchMeta`). A
row is a mapping of fields in a partition, `train` or `val`, under the key `<prompt>_<trajectory>_<row>`
(sessions.py). Sampler, group filter and validation read, change and remove rows, and all of them do it here:
no other module imports `transfer_queue`, so a veRL with another store changes this one
(docs/upgrading_verl.md).

Each call is a request to Ray actors: callers collect keys and make one. An empty list of keys is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

__all__ = ["KVBatchMeta", "plain_value", "read_rows", "remove_rows", "unpadded_keys", "write_rows"]


def unpadded_keys(batch: KVBatchMeta) -> list[str]:
    """The keys of a batch without those of the rows with which veRL has padded it."""
    return [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")]


def read_rows(keys: Sequence[str], partition: str, fields: Sequence[str]) -> TensorDict:
    """Returns `fields` of the rows, in the order of `keys`; tensors of different lengths are nested."""
    return tq.kv_batch_get(keys=list(keys), partition_id=partition, select_fields=list(fields))


def write_rows(rows: Mapping[str, Mapping[str, Any]], partition: str) -> None:
    """Replaces fields of rows that are there: key -> field -> value. All rows name the same fields."""
    values = list_of_dict_to_tensordict([dict(row) for row in rows.values()])
    tq.kv_batch_put(keys=list(rows), partition_id=partition, fields=values)


def plain_value(value: Any) -> Any:
    """The value as it was stored: the store may return it in one of tensordict's wrappers."""
    return getattr(value, "data", value)


def remove_rows(keys: Sequence[str], partition: str) -> None:
    """Removes rows with all their fields."""
    tq.kv_clear(keys=list(keys), partition_id=partition)
