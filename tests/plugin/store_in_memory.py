"""TransferQueue as a dictionary, and a rollout that answers at once: what veRL's replay buffers need.

The real store lives in Ray (the trainings of tests/e2e use it). The replay buffers over it are veRL's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.trainer.ppo.v1 import replay_buffer
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from rag_r1.plugin import sample_store
from rag_r1.plugin.sample_store import KVBatchMeta
from rag_r1.plugin.sampler import SearchReplayBuffer, SearchReplayBufferAsync

FAILED = "failed_retriever"


class Store:
    """Rows and tags by partition and key, with the functions of `transfer_queue` that replay buffers call."""

    def __init__(self):
        self.tags: dict[str, dict[str, dict]] = {}
        self.rows: dict[str, dict[str, dict]] = {}
        self.fetched: Counter = Counter()

    def put(self, partition: str, key: str, tag: dict, **fields) -> None:
        self.tags.setdefault(partition, {})[key] = tag
        if fields:
            self.rows.setdefault(partition, {})[key] = fields

    def kv_list(self, partition_id=None):
        chosen = self.tags if partition_id is None else {partition_id: self.tags.get(partition_id, {})}
        return {name: {key: dict(tag) for key, tag in items.items()} for name, items in chosen.items()}

    def kv_batch_get(self, keys, partition_id, select_fields):
        assert keys, "veRL's store finds no empty list of keys"
        self.fetched.update(keys)
        rows = [self.rows[partition_id][key] for key in keys]
        return list_of_dict_to_tensordict([{name: row[name] for name in select_fields} for row in rows])

    def kv_batch_put(self, keys, partition_id, fields: TensorDict):
        for i, key in enumerate(keys):
            for name in fields.keys():
                self.rows[partition_id][key][name] = fields[i][name]

    def kv_clear(self, keys, partition_id):
        assert keys
        for key in keys:
            del self.tags[partition_id][key]
            self.rows.get(partition_id, {}).pop(key, None)


class Rollout:
    """Stands for trainer and agent loops: each prompt asked for is the next of `groups`, finished at once.

    A group is a list of rewards, one for each trajectory; None: masked. [] fails without a trajectory.
    """

    def __init__(self, store: Store, groups: Iterator[list[float | None]], rows_of_each: int = 1):
        self.store, self.groups, self.requested, self.started = store, iter(groups), [], 0
        self.rows_of_each = rows_of_each

    def __call__(self, prompts: int) -> None:
        self.requested.append(prompts)
        self.start(prompts)

    def start(self, prompts: int, partition: str = "train") -> None:
        for _ in range(prompts):
            rewards, uid = next(self.groups), f"prompt{self.started}"
            self.started += 1
            status = "finished" if rewards else "failure"
            self.store.put(partition, uid, {"is_prompt": True, "status": status, "global_steps": 1})
            for i, reward in enumerate(rewards):
                for part in range(self.rows_of_each):
                    self.store.put(partition, f"{uid}_{i}_{part}", {"seq_len": 2}, **row(reward))


def row(reward: float | None) -> dict:
    """A row as veRL's agent-loop worker stores it, after our reward manager."""
    masked = float(reward is None)
    info = {"masked": masked, FAILED: masked, "em": reward, "score": reward, "source": "demo"}
    scores = torch.tensor([0.0, reward or 0.0])
    return {
        "extra_fields": {"reward_extra_info": info},
        "rm_scores": scores,
        "response_mask": torch.tensor([1, 1]),
        "data_source": "demo",
    }


def make_buffer(monkeypatch, groups, *, asynchronous=False, rows_of_each=1, store=None, **options):
    """One of our samplers over veRL's replay buffer, with its store and rollout as attributes. `options` are
    `sampler_kwargs`."""
    store = Store() if store is None else store
    for module in (replay_buffer, sample_store):
        monkeypatch.setattr(module, "tq", store)
    rollout = Rollout(store, groups, rows_of_each)
    kind = SearchReplayBufferAsync if asynchronous else SearchReplayBuffer
    buffer = kind(
        trainer_mode="colocate_async" if asynchronous else "sync",
        trainer_config=OmegaConf.create({}),
        max_off_policy_threshold=8,
        max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create({"poll_interval": 0.0, "refill_wait_s": 0.0, **options}),
        refill_fn=rollout,
    )
    buffer.store, buffer.rollout = store, rollout
    return buffer


def sample(buffer, prompts: int, partition: str = "train") -> tuple[KVBatchMeta, dict]:
    """What a step does: start `prompts`, and ask for the batch."""
    buffer.rollout.start(prompts, partition)
    return buffer.sample(global_steps=1, partition_id=partition, batch_size=prompts)


def rewards_of(buffer, batch: KVBatchMeta) -> dict[str, list[float | None]]:
    """The rewards of a batch by prompt."""
    groups: dict[str, list[float | None]] = {}
    for key in batch.keys:
        info = buffer.store.rows[batch.partition_id][key]["extra_fields"]["reward_extra_info"]
        groups.setdefault(key.split("_")[0], []).append(info["em"])
    return groups
