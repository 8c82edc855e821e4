"""veRL's trainers with mini-batches of whole sessions: `trainer.v1.trainer_mode=sessions_<veRL's mode>`.

They are for protocols that rewrite their context, whose trajectories have several rows (sessions.py describes
how veRL treats these, and where). The trainers are veRL's own; overridden are only the layout of a batch
before the step and the number of rows in a mini-batch. `ppo_mini_batch_size` keeps its meaning, in prompts: a
step has as many updates as with one row for each trajectory.

veRL 0.9.1 calls four of its own methods that are overridden here, in this order. `_balance_batch` calls
`_get_required_batch_multiple`, pads the batch to a multiple of that number, and sorts it. Before it we form
the mini-batches; the number is the sum of their sizes with padding, so veRL adds exactly the padding that
they need; after it we put the rows into the order of the ranks. `_update_actor` and `_update_critic` then see
a configuration in which a mini-batch has its rows with padding. They share the `_BatchLayout` of the step.

They record advantages as well, as all our trainers do (recording_trainer.py).

The metrics `sessions/rows` (mean number of rows per trajectory) and `sessions/padding` (share of padding rows
in the batch) show what rewriting costs. veRL's own means over rows (`critic/score/mean`, `num_turns/mean`)
count a trajectory once for each of its rows; those under `search/` count trajectories. Its means over
micro-batches (`actor/ppo_kl`, `actor/pg_clipfrac`) count one of nothing but padding as 0; losses and
gradients do not.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import lcm

from omegaconf import open_dict
from verl.trainer.ppo.v1 import (
    PPOTrainerColocateAsync,
    PPOTrainerSeparateAsync,
    PPOTrainerSync,
    register_trainer,
)

from rag_r1.plugin.recording_trainer import RecordingMixin
from rag_r1.plugin.sample_store import KVBatchMeta
from rag_r1.plugin.sessions import last_rows, mini_batches, padded_row_count, rank_shares


@dataclass
class _BatchLayout:
    """Of the batch of a step: the keys of each mini-batch, the ranks, and the rows of a mini-batch with its
    padding."""

    mini_batches: list[list[str]]
    ranks: int = 0
    rows: int = 0


class WholeSessionMixin(RecordingMixin):
    """Mixin for a trainer that veRL registers as `verls_mode`; see the top of the module."""

    _layout: _BatchLayout  # begun in `_balance_batch`, complete after `_get_required_batch_multiple`

    def _balance_batch(
        self,
        batch: KVBatchMeta,
        metrics: dict,
        logging_prefix: str = "global_seqlen",
        keep_minibatch: bool = False,
    ) -> KVBatchMeta:
        """veRL's batch, padded, in the order in which the ranks take whole trajectories from it."""
        model = self.config.actor_rollout_ref
        real = list(batch.keys)
        batches = mini_batches(real, model.actor.ppo_mini_batch_size * model.rollout.n)
        self._layout = _BatchLayout(batches)
        batch = super()._balance_batch(batch, metrics, logging_prefix, keep_minibatch)
        known = set(real)
        padding = [key for key in batch.keys if key not in known]
        lengths = {key: int(tag["seq_len"]) for key, tag in zip(batch.keys, batch.tags, strict=True)}
        shares = rank_shares(batches, padding, self._layout.ranks, lengths)
        position = {key: i for i, key in enumerate(batch.keys)}
        batch.reorder([position[key] for share in shares for key in share])
        tokens = [sum(lengths[key] for key in share) for share in shares]
        metrics[f"{logging_prefix}/balanced_min"] = min(tokens)
        metrics[f"{logging_prefix}/balanced_max"] = max(tokens)
        metrics["sessions/rows"] = len(real) / len(last_rows(real))
        metrics["sessions/padding"] = len(padding) / len(batch)
        return batch

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """The size of this batch with its padding. The batch has at most as many rows, so the multiple to
        which veRL pads it is this size itself."""
        layout = self._layout
        multiple = dp_size * self._row_multiple()
        layout.ranks, layout.rows = dp_size, padded_row_count(layout.mini_batches, multiple)
        return layout.rows * len(layout.mini_batches)

    def _row_multiple(self) -> int:
        """Rows of which every worker's share of a mini-batch is a multiple; 1 if all limits are in tokens."""
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
        """veRL's update, in mini-batches of this layout."""
        with self._mini_batches_in_rows():
            return super()._update_actor(batch, metrics)

    def _update_critic(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """veRL's update, in mini-batches of this layout."""
        with self._mini_batches_in_rows():
            return super()._update_critic(batch, metrics)

    @contextmanager
    def _mini_batches_in_rows(self) -> Iterator[None]:
        """veRL takes `ppo_mini_batch_size * rollout.n` for the rows of a mini-batch of its workers: within
        this context the product is the number for this batch. The critic's mini-batches are the actor's:
        training/preflight/sessions.py checks that. The workers' own copies of the configuration do not change."""
        config, self.config = self.config, copy.deepcopy(self.config)
        try:
            with open_dict(self.config):
                self.config.actor_rollout_ref.rollout.n = 1
                self.config.actor_rollout_ref.actor.ppo_mini_batch_size = self._layout.rows
                self.config.critic.ppo_mini_batch_size = self._layout.rows
            yield
        finally:
            self.config = config


@register_trainer("sessions_sync")
class SessionTrainerSync(WholeSessionMixin, PPOTrainerSync):
    """For `trainer_mode=sync`."""

    verls_mode = "sync"


@register_trainer("sessions_colocate_async")
class SessionTrainerColocateAsync(WholeSessionMixin, PPOTrainerColocateAsync):
    """For `trainer_mode=colocate_async`."""

    verls_mode = "colocate_async"


@register_trainer("sessions_separate_async")
class SessionTrainerSeparateAsync(WholeSessionMixin, PPOTrainerSeparateAsync):
    """For `trainer_mode=separate_async`."""

    verls_mode = "separate_async"
