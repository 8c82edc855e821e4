"""DAPO's dynamic sampling (arXiv 2503.14476) in veRL's replay buffers: replaces groups that teach nothing.

If all trajectories of a group have the same reward, their advantages are 0. With
`algorithm.filter_groups.enable=true` veRL's replay buffer drops such groups while others are still being
generated, and requests new prompts until its batch is full (replay_buffer.py, `ReplayBuffer.sample`). With
`trainer.v1.sampler.sync_refill_failed_groups=true` the same code replaces groups from which nothing arrived.
Both are used unchanged. veRL does not pass these two settings to a custom sampler, so they are also keys of
`trainer.v1.sampler.sampler_kwargs`, which recipes/rag_r1_defaults.yaml sets from veRL's keys. `GroupFilter`
adds three things:

**Masked trajectories do not count.** Their reward is unknown, and veRL would read it as 0, or fail on None.
Groups are compared by their other trajectories; a group with fewer than two of these is replaced as well.

**The limit is enforced.** veRL's own buffer ignores `algorithm.filter_groups.max_num_gen_batches`. Here a
step generates at most that many batches of prompts, where 0 means no limit, as in veRL. When all of them are
finished, the step trains on the groups that it has; if it has none, the run ends with an error. At most one
batch of groups lost to failures is replaced, since more requests do not repair a search engine.

**Metrics.** `search/filtered_groups` (equal rewards), `search/unusable_groups` (lost to failures),
`search/refilled_groups` (requested instead) and `search/short_groups` (missing in the batch) are logged
beside veRL's `training/filter_groups/...`. The means of `search/...` include the trajectories of dropped
groups, because they describe how the policy searches and not what a step was trained on.

With `trainer_mode=separate_async` and its switching of GPUs, groups are also replaced between two steps,
where the limit does not apply.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Set
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import FILTER_GROUPS_REWARD_METRIC

from rag_r1.config.schema import SamplerOptions
from rag_r1.plugin.sample_store import KVBatchMeta, plain_value, read_rows
from rag_r1.plugin.sessions import last_rows, prompt_of

logger = logging.getLogger(__name__)

#: The reward info and the metric of each trajectory of a group.
_Group = list[tuple[dict[str, Any], float | None]]
#: Requests the given number of further prompts.
Refill = Callable[[int], Any]
#: Names of the counts of groups in a step, each of which is logged as `search/<name>`.
COUNTED = ("filtered_groups", "unusable_groups", "refilled_groups", "short_groups")


class SamplesExhaustedError(Exception):
    """Raised when the limit is reached and all generations are finished, but the batch is not full."""


class GroupFilter:
    """Mixin for veRL's ReplayBuffer and ReplayBufferAsync that replaces groups without a learning signal.

    It keeps to the limit of generated batches and counts the groups. The constructor raises ValueError if
    groups are to be filtered and `options` lacks the size of a batch.
    """

    def __init__(self, *args: Any, options: SamplerOptions, refill_fn: Refill | None = None, **kwargs: Any):
        filter_options = options.filter_groups
        metric = (filter_options.metric or FILTER_GROUPS_REWARD_METRIC) if filter_options.enable else None
        refills_failed = options.sync_refill_failed_groups
        if metric is not None and options.train_batch_size is None:
            raise ValueError(
                "filtering groups needs trainer.v1.sampler.sampler_kwargs.train_batch_size: set it to"
                " ${data.train_batch_size}, as the shipped recipes do"
            )
        self.group_size = options.group_size
        self.max_gen_batches = filter_options.max_num_gen_batches or 0
        self.replaces_groups = metric is not None or refills_failed
        #: Reward infos of the trajectories in the groups that this step dropped, for the metrics.
        self.dropped_infos: list[dict[str, Any]] = []
        self._verl_refill = refill_fn
        #: Reward infos of the trajectories of each classified group, by the group's prompt.
        self._infos: dict[str, list[dict[str, Any]]] = {}
        #: Prompts of the groups with fewer than two usable trajectories.
        self._unusable: set[str] = set()
        self._counts: Counter[str] = Counter()
        #: The number of prompts that this step may still request; None: no limit.
        self._budget: int | None = None
        #: The number of groups lost to failures that this step replaces at most; None outside of a step.
        self._max_replacements: int | None = None
        super().__init__(
            *args,
            refill_fn=self._refill if refill_fn is not None else None,
            filter_groups_metric=metric,
            train_batch_size=options.train_batch_size,
            # veRL's loader gives prompts one by one if either setting is on (`_init_dataloader`).
            gen_batch_size=1 if self.replaces_groups else options.train_batch_size,
            max_inflight_gen_batches=filter_options.max_inflight_gen_batches or 1,
            sync_refill_failed_groups=refills_failed,
            **kwargs,
        )

    def sample(
        self, *args: Any, partition_id: str, batch_size: int, **kwargs: Any
    ) -> tuple[KVBatchMeta, dict]:
        """Return veRL's batch of `batch_size` prompts, or of fewer if the limit is reached, and its metrics.

        The batch is empty if failures have left nothing. Raises RuntimeError if the rewards were equal in
        every group, or if the reward manager returns no value of the name `algorithm.filter_groups.metric`.
        """
        if partition_id != "train" or not self.replaces_groups:
            return super().sample(*args, partition_id=partition_id, batch_size=batch_size, **kwargs)
        self._counts = Counter()
        self.dropped_infos = []
        self._max_replacements = batch_size
        self._budget = (self.max_gen_batches - 1) * batch_size if self.max_gen_batches > 0 else None
        try:
            batch, metrics = super().sample(*args, partition_id=partition_id, batch_size=batch_size, **kwargs)
        except SamplesExhaustedError:
            batch, metrics = self._sample_remaining(*args, batch_size=batch_size, **kwargs)
        finally:
            self._budget = self._max_replacements = None
        for key in batch.keys:
            self._infos.pop(prompt_of(key), None)
        return batch, {**metrics, **{f"search/{name}": float(self._counts[name]) for name in COUNTED}}

    def _sample_remaining(self, *args: Any, batch_size: int, **kwargs: Any) -> tuple[KVBatchMeta, dict]:
        """Return a batch of all available groups, once all generations of a step are finished."""
        groups = self.finished_keys["train"] | self.failure_keys["train"]
        self._counts["short_groups"] = batch_size - len(groups)
        counts = {name: self._counts[name] for name in COUNTED}
        logger.warning("%d of %d groups after all batches of a step: %s", len(groups), batch_size, counts)
        if groups:
            return super().sample(*args, partition_id="train", batch_size=len(groups), **kwargs)
        if self._counts["unusable_groups"]:
            return KVBatchMeta(partition_id="train", keys=[], tags=[]), {}
        raise RuntimeError(
            f"none of {self._counts['filtered_groups']} groups had different rewards, so there is nothing to"
            f" learn from (algorithm.filter_groups, {self.max_gen_batches} batches in a step): use easier or"
            " harder questions, more answers to each (rollout.n), a finer metric, or more max_num_gen_batches"
        )

    def _refill(self, prompts: int) -> None:
        """Request further prompts as veRL's `refill_fn` does, but within the limit."""
        allowed = prompts if self._budget is None else min(prompts, self._budget)
        if allowed > 0:
            self._counts["refilled_groups"] += allowed
            if self._budget is not None:
                self._budget -= allowed
            self._verl_refill(allowed)

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        """Wait as veRL does. Raises SamplesExhaustedError if nothing more will arrive."""
        pending = self.pending_keys[partition_id] or self.running_keys[partition_id]
        if partition_id == "train" and self._budget is not None and self._budget <= 0 and not pending:
            raise SamplesExhaustedError
        return super()._wait_for_next_poll(partition_id, last_debug_time)

    def _evict_terminal_groups(self, global_steps: int, partition_id: str, eviction_reasons: tuple) -> tuple:
        """Evict groups as veRL does and count them. Ends their replacement if too many were lost to
        failures."""
        _, constant, failed, _ = eviction_reasons
        self._counts["filtered_groups"] += len(constant)
        self._counts["unusable_groups"] += len(failed)
        if self._max_replacements is not None and self._counts["unusable_groups"] >= self._max_replacements:
            self._budget = 0
        return super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)

    def _terminal_eviction_reasons(self, global_steps: int, partition_id: str) -> tuple:
        """Return veRL's sets of groups to evict, with unusable groups among the failed ones."""
        stale, constant, failed, rewards = super()._terminal_eviction_reasons(global_steps, partition_id)
        return stale, constant, failed | (self._unusable & self.finished_keys[partition_id]), rewards

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        """Remove groups as veRL does, but keep their reward infos for the metrics."""
        for uid in uids:
            self.dropped_infos += self._infos.pop(uid, ())
            self._unusable.discard(uid)
        super()._clear_groups(partition_id, uids)

    def _dapo_filtered_keys(self, partition_id: str) -> tuple[set[str], Counter]:
        """Return veRL's classification of groups, but based on our comparison of their rewards. veRL keeps
        its results in a cache, into which ours are put first, so that it does not compute its own."""
        if partition_id == "train" and self.filter_groups_metric is not None:
            cache = self._dapo_classification_cache[partition_id]
            for uid, group in self._finished_groups(partition_id, skip=cache.keys()).items():
                cache[uid] = self._classify(uid, group)
        return super()._dapo_filtered_keys(partition_id)

    def _finished_groups(self, partition_id: str, skip: Set[str]) -> dict[str, _Group]:
        """Return the trajectories of each finished prompt that is not in `skip`, as (reward info, metric).
        The metric is None if the trajectory is masked or was not judged. Raises RuntimeError if the reward
        manager returns no value of its name."""
        new_keys = self.finished_keys[partition_id] - skip
        rows = last_rows([key for key in self.partitions[partition_id] if prompt_of(key) in new_keys])
        if not rows:
            return {}
        is_reward = self.filter_groups_metric == FILTER_GROUPS_REWARD_METRIC
        fields = ["extra_fields", "rm_scores"] if is_reward else ["extra_fields"]
        data = read_rows(rows, partition_id, fields)
        infos = [reward_info(value) for value in data["extra_fields"]]
        if is_reward:
            values = [float(scores.sum()) for scores in data["rm_scores"]]
        else:
            values = [info.get(self.filter_groups_metric) for info in infos]
        groups: dict[str, _Group] = defaultdict(list)
        for key, info, value in zip(rows, infos, values, strict=True):
            if info.get("masked"):
                value = None
            elif not is_reward and self.filter_groups_metric not in info:
                names = ", ".join(sorted(info)) or "none"
                raise RuntimeError(
                    f"algorithm.filter_groups.metric={self.filter_groups_metric} is not a value of the reward"
                    f" manager: set it to one of {names}"
                )
            groups[prompt_of(key)].append((info, value))
        return groups

    def _classify(self, uid: str, group: _Group) -> float | None:
        """Return the metric that all usable trajectories of a group share; None if they differ, or if there
        are fewer than two. Such a group is noted as unusable, unless it was to have one trajectory only. The
        reward infos of the group are kept."""
        self._infos[uid] = [info for info, _ in group]
        values = [float(value) for _, value in group if value is not None]
        if len(values) < 2:
            if max(len(group), self.group_size or 1) > 1:
                self._unusable.add(uid)
            return None
        return values[0] if min(values) == max(values) else None


def reward_info(extra_fields: Any) -> dict[str, Any]:
    """Return a row's `reward_extra_info`, the values that the reward manager returned beside the reward.
    `extra_fields` is the field of that name as veRL's store returns it."""
    return plain_value(extra_fields).get("reward_extra_info") or {}
