"""veRL's trainers with mini-batches of whole sessions: `trainer.v1.trainer_mode=sessions_<veRL's mode>`.

They are for protocols that rewrite their context, whose trajectories have several rows (sessions.py describes
where veRL mistreats these). The trainers override only how a batch is laid out before the step, and the
number of rows in a mini-batch. `ppo_mini_batch_size` is still a number of prompts, and a step has as many
updates as with one row per trajectory.

Like all our trainers they record advantages (recording_trainer.py). With the estimator `turn_loo`, veRL would
treat each row as a trajectory, so the advantages are computed again for whole trajectories.

The metrics `sessions/rows` (mean number of rows per trajectory) and `sessions/padding` (share of padding rows
in the batch) show the cost of rewriting. Of the other metrics, veRL's means over rows (`critic/score/mean`,
`num_turns/mean`) count a trajectory once for each of its rows, while those under `search/` count it once.
veRL's means over micro-batches (`actor/ppo_kl`, `actor/pg_clipfrac`) count a micro-batch that is all padding
as 0; losses and gradients ignore it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from math import lcm
from typing import Any

from omegaconf import open_dict
from verl.trainer.ppo.v1 import (
    PPOTrainerColocateAsync,
    PPOTrainerSeparateAsync,
    PPOTrainerSync,
    register_trainer,
)

from rag_r1.plugin import sessions
from rag_r1.plugin.algorithms.turn_loo import turn_loo_of_sessions, uses_turn_loo
from rag_r1.plugin.recording_trainer import RecordingMixin
from rag_r1.plugin.sample_store import KVBatchMeta, read_rows, unpadded_keys, write_rows


class WholeSessionMixin(RecordingMixin):
    """Mixin for a trainer of veRL that lays out a batch so that each mini-batch has whole trajectories.

    `_balance_batch` and `_get_required_batch_multiple`, which veRL calls within it, set the attributes that
    describe the layout: `_mini_batches`, `_ranks` and `_mini_batch_rows`. The updates use the last one.
    """

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, *args: Any, **kwargs: Any) -> KVBatchMeta:
        """Return the batch, padded by veRL and reordered so that each rank gets its rows of whole
        trajectories."""
        policy = self.config.actor_rollout_ref
        keys = list(batch.keys)
        self._mini_batches = sessions.mini_batches(keys, policy.actor.ppo_mini_batch_size * policy.rollout.n)
        batch = super()._balance_batch(batch, metrics, *args, **kwargs)  # pads to the size returned below
        real_keys = set(keys)
        padding = [key for key in batch.keys if key not in real_keys]
        lengths = {key: int(tag["seq_len"]) for key, tag in zip(batch.keys, batch.tags, strict=True)}
        shares = sessions.rank_shares(self._mini_batches, padding, self._ranks, lengths)
        position = {key: i for i, key in enumerate(batch.keys)}
        batch.reorder([position[key] for share in shares for key in share])
        tokens = [sum(lengths[key] for key in share) for share in shares]
        prefix = kwargs.get("logging_prefix", "global_seqlen")
        metrics.update({f"{prefix}/balanced_min": min(tokens), f"{prefix}/balanced_max": max(tokens)})
        metrics["sessions/rows"] = len(keys) / len(sessions.last_rows(keys))
        metrics["sessions/padding"] = len(padding) / len(batch)
        return batch

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Return the padded size of this batch. veRL calls this while it balances a batch, and pads the
        batch to a multiple of the result."""
        self._ranks = dp_size
        multiple = dp_size * self._micro_batch_rows()
        self._mini_batch_rows = sessions.padded_row_count(self._mini_batches, multiple)
        return self._mini_batch_rows * len(self._mini_batches)

    def _micro_batch_rows(self) -> int:
        """Return the number that must divide a worker's number of rows in each mini-batch. It is 1 if all
        micro-batches are limited by tokens."""
        policy, critic = self.config.actor_rollout_ref, self.config.critic
        sizes = []
        if not policy.actor.use_dynamic_bsz:
            sizes.append(policy.actor.ppo_micro_batch_size_per_gpu)
            sizes.append(policy.rollout.log_prob_micro_batch_size_per_gpu)
        if self.use_reference_policy and not policy.ref.log_prob_use_dynamic_bsz:
            sizes.append(policy.ref.log_prob_micro_batch_size_per_gpu)
        if self.use_critic and not critic.use_dynamic_bsz:
            sizes.append(critic.ppo_micro_batch_size_per_gpu)
        return lcm(*(int(size) for size in sizes if size))

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Update the actor as veRL does, in mini-batches of whole trajectories."""
        with self._config_in_rows():
            return super()._update_actor(batch, metrics)

    def _update_critic(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Update the critic as veRL does, in mini-batches of whole trajectories."""
        with self._config_in_rows():
            return super()._update_critic(batch, metrics)

    @contextmanager
    def _config_in_rows(self) -> Iterator[None]:
        """Within this context, the configuration has the mini-batch size of this batch, in rows.

        veRL tells its workers the product of `ppo_mini_batch_size` and `rollout.n`. The workers' copies of
        the configuration are not affected.
        """
        config, self.config = self.config, copy.deepcopy(self.config)
        try:
            with open_dict(self.config):
                self.config.actor_rollout_ref.rollout.n = 1
                self.config.actor_rollout_ref.actor.ppo_mini_batch_size = self._mini_batch_rows
                self.config.critic.ppo_mini_batch_size = self._mini_batch_rows
            yield
        finally:
            self.config = config


class SessionAdvantages:
    """Mixin that computes the advantages of `turn_loo` for whole trajectories.

    It comes after RecordingMixin in the bases of a trainer, so that the recorded advantages are those that
    are trained on.
    """

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Compute the advantages as veRL does and, with `turn_loo`, again for whole trajectories."""
        batch = super()._compute_advantage(batch, metrics)
        if uses_turn_loo(self.config):
            write_turn_advantages(batch)
        return batch


def write_turn_advantages(batch: KVBatchMeta) -> None:
    """Replace the advantages and returns in veRL's store with those of `turn_loo` for whole trajectories."""
    keys = unpadded_keys(batch)
    rows_by_session = sessions.group_by_session(keys)
    if len(rows_by_session) == len(keys):
        return  # each trajectory is one row, and veRL's result is right
    fields = ("response_mask", "rm_scores")
    data = read_rows(keys, batch.partition_id, fields)
    masks, rewards = (dict(zip(keys, data[name].unbind(), strict=True)) for name in fields)
    results = turn_loo_of_sessions(
        [[rewards[key] for key in rows] for rows in rows_by_session.values()],
        [[masks[key] for key in rows] for rows in rows_by_session.values()],
        index=[sessions.prompt_of(name) for name in rows_by_session],
    )
    write_rows(
        {
            key: {"advantages": advantages, "returns": returns}
            for rows, values in zip(rows_by_session.values(), results, strict=True)
            for key, (advantages, returns) in zip(rows, values, strict=True)
        },
        batch.partition_id,
    )


@register_trainer("sessions_sync")
class SessionTrainerSync(WholeSessionMixin, SessionAdvantages, PPOTrainerSync):
    """For `trainer_mode=sync`."""

    verls_mode = "sync"


@register_trainer("sessions_colocate_async")
class SessionTrainerColocateAsync(WholeSessionMixin, SessionAdvantages, PPOTrainerColocateAsync):
    """For `trainer_mode=colocate_async`."""

    verls_mode = "colocate_async"


@register_trainer("sessions_separate_async")
class SessionTrainerSeparateAsync(WholeSessionMixin, SessionAdvantages, PPOTrainerSeparateAsync):
    """For `trainer_mode=separate_async`."""

    verls_mode = "separate_async"
