"""All accesses to veRL's store of samples, TransferQueue.

veRL's trainers keep the rows of a rollout in TransferQueue and pass batches of keys around (`KVBatchMeta`). A
row is a mapping of fields in a partition, `train` or `val`, under the key `<prompt>_<trajectory>_<row>`
(sessions.py). The sampler, the group filter, the validation and our trainers read, change and remove rows
through this module. No other module imports `transfer_queue`, so if veRL changes its store, only this one has
to be adapted (docs/upgrading_verl.md).

Each call is a request to Ray actors, so callers should pass many keys at once. Keys must not be empty.
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
    """Return the keys of a batch without those of padding rows that veRL has added."""
    return [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")]


def read_rows(keys: Sequence[str], partition: str, fields: Sequence[str]) -> TensorDict:
    """Return `fields` of the rows, by the name of the field and in the order of `keys`. Tensors of different
    lengths are nested."""
    return tq.kv_batch_get(keys=list(keys), partition_id=partition, select_fields=list(fields))


def write_rows(rows: Mapping[str, Mapping[str, Any]], partition: str) -> None:
    """Replace fields of existing rows. `rows` maps key -> field -> value, with the same fields for all
    keys."""
    values = list_of_dict_to_tensordict([dict(row) for row in rows.values()])
    tq.kv_batch_put(keys=list(rows), partition_id=partition, fields=values)


def plain_value(value: Any) -> Any:
    """Return a value as it was stored, without the wrapper of tensordict in which the store may return
    it."""
    return getattr(value, "data", value)


def remove_rows(keys: Sequence[str], partition: str) -> None:
    """Remove rows with all their fields."""
    tq.kv_clear(keys=list(keys), partition_id=partition)
