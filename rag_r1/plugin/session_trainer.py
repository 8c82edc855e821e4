"""veRL's trainers with mini-batches of whole trajectories: `trainer.v1.trainer_mode=sessions_<veRL's mode>`.

For protocols that rewrite their context, whose trajectories have several rows (sessions.py says what veRL
does with these, and where). Everything is veRL's own trainer; what is overridden is how a batch is laid out
before the step, and the number of rows that make a mini-batch. `ppo_mini_batch_size` keeps its meaning, in
prompts: a step has as many updates as with one row for each trajectory.

veRL takes a trainer by name (`register_trainer`). Its base class compares that name with "sync" in six
places, so the name of the parent is put back into the configuration first; the keys of the mode stay under
veRL's own name (`trainer.v1.separate_async.parameter_sync_step`).

The metrics `sessions/rows` (rows of a trajectory, mean) and `sessions/padding` (share of masked rows in the
batch) tell what rewriting costs. veRL's own means over rows (`critic/score/mean`, `num_turns/mean`) count a
trajectory once for each of its rows; those under `search/` count trajectories. Its means over micro-batches
(`actor/ppo_kl`, `actor/pg_clipfrac`) count one of nothing but padding as 0; losses and gradients do not.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from math import lcm
from typing import Any

from omegaconf import DictConfig, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import (
    PPOTrainerColocateAsync,
    PPOTrainerSeparateAsync,
    PPOTrainerSync,
    register_trainer,
)

from rag_r1.plugin.sessions import last_rows, mini_batches, rows_of_each, shares


class WholeSessions:
    """Mixin for a trainer of veRL's, registered there as `verls_mode`; see the module's paragraph."""

    verls_mode: str

    def __init__(self, config: DictConfig):
        config.trainer.v1.trainer_mode = self.verls_mode
        super().__init__(config)

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, *args: Any, **kwargs: Any) -> KVBatchMeta:
        """veRL's batch, padded, in the order in which the ranks cut whole trajectories from it."""
        model = self.config.actor_rollout_ref
        real = list(batch.keys)
        self._mini_batches = mini_batches(real, model.actor.ppo_mini_batch_size * model.rollout.n)
        batch = super()._balance_batch(batch, metrics, *args, **kwargs)  # pads to the size asked for below
        known = set(real)
        padding = [key for key in batch.keys if key not in known]
        lengths = {key: int(tag["seq_len"]) for key, tag in zip(batch.keys, batch.tags, strict=True)}
        dealt = shares(self._mini_batches, padding, self._ranks, lengths)
        position = {key: i for i, key in enumerate(batch.keys)}
        batch.reorder([position[key] for share in dealt for key in share])
        tokens = [sum(lengths[key] for key in share) for share in dealt]
        prefix = kwargs.get("logging_prefix", "global_seqlen")
        metrics.update({f"{prefix}/balanced_min": min(tokens), f"{prefix}/balanced_max": max(tokens)})
        metrics["sessions/rows"] = len(real) / len(last_rows(real))
        metrics["sessions/padding"] = len(padding) / len(batch)
        return batch

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """The size of this batch with its padding, which veRL takes for a multiple to round up to."""
        self._ranks = dp_size
        self._rows = rows_of_each(self._mini_batches, dp_size * self._micro_batch())
        return self._rows * len(self._mini_batches)

    def _micro_batch(self) -> int:
        """Rows of which every worker's share of a mini-batch must be a multiple; 1 if all go by tokens."""
        model, critic = self.config.actor_rollout_ref, self.config.critic
        sizes = []
        if not model.actor.use_dynamic_bsz:
            sizes += [
                model.actor.ppo_micro_batch_size_per_gpu,
                model.rollout.log_prob_micro_batch_size_per_gpu,
            ]
        if self.use_reference_policy and not model.ref.log_prob_use_dynamic_bsz:
            sizes.append(model.ref.log_prob_micro_batch_size_per_gpu)
        if self.use_critic and not critic.use_dynamic_bsz:
            sizes.append(critic.ppo_micro_batch_size_per_gpu)
        return lcm(*(int(size) for size in sizes if size))

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        with self._mini_batches_in_rows():
            return super()._update_actor(batch, metrics)

    def _update_critic(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        with self._mini_batches_in_rows():
            return super()._update_critic(batch, metrics)

    @contextmanager
    def _mini_batches_in_rows(self) -> Iterator[None]:
        """veRL multiplies two keys to tell its workers the rows of a mini-batch: here that gives the rows of
        this batch's. The workers have copies of their own, in which nothing changes."""
        given, self.config = self.config, copy.deepcopy(self.config)
        try:
            with open_dict(self.config):
                self.config.actor_rollout_ref.rollout.n = 1
                self.config.actor_rollout_ref.actor.ppo_mini_batch_size = self._rows
                self.config.critic.ppo_mini_batch_size = self._rows
            yield
        finally:
            self.config = given


@register_trainer("sessions_sync")
class SessionTrainerSync(WholeSessions, PPOTrainerSync):
    """For `trainer_mode=sync`."""

    verls_mode = "sync"


@register_trainer("sessions_colocate_async")
class SessionTrainerColocateAsync(WholeSessions, PPOTrainerColocateAsync):
    """For `trainer_mode=colocate_async`."""

    verls_mode = "colocate_async"


@register_trainer("sessions_separate_async")
class SessionTrainerSeparateAsync(WholeSessions, PPOTrainerSeparateAsync):
    """For `trainer_mode=separate_async`."""

    verls_mode = "separate_async"
