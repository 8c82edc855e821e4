"""veRL's replay buffers, without masked trajectories and with search metrics.

The sampler is named in veRL's configuration (`trainer.v1.sampler.custom_sampler`). veRL gets each training
batch from it, and adds the metrics that it returns to those of the step. The sampler does four things.

**It removes masked trajectories from the batch** (`rag_r1.failures`; the reward manager marks them). The
response mask of such a trajectory is 0, which keeps it out of the loss. But its reward would still count in
the mean of its GRPO group, so an outage of the search engine would make the rest of the group look good. If
only one trajectory of a group is left, it is removed as well: it cannot be compared with any other, and veRL
would use its plain reward as the advantage (core_algos.py, `compute_grpo_outcome_advantage`). veRL pads the
batch to the size that its mini-batches require. If nothing is left of a batch, another one is generated from
the next prompts after a wait, at most `refills` times. Then the run ends with an error. Masked trajectories
of a validation are also left out of its means (validation_rows.py), and groups with equal rewards can be
replaced (DAPO, group_filter.py).

**It logs how the policy searches during training**, as `search/<name>`, since veRL logs each term of the
reward in validation but only the total in training. The means are over all trajectories that arrived,
including masked ones, whose terms are unknown. All counts are of trajectories, however many rows they have.

**It prepares trajectories of several rows** (sessions.py) for veRL's advantages: it removes rows in which
nothing was generated, and moves the reward of a row to a generated token.

**It receives settings that veRL does not pass to a custom sampler** (trainer_base.py,
`_build_replay_buffer`). They are keys of `trainer.v1.sampler.sampler_kwargs`, which
`rag_r1.config.schema.SamplerOptions` declares. One is `poll_interval`: by default veRL looks for finished
trajectories every 2 s, which is longer than a whole step of a small policy.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from rag_r1.agent.tokens.signals import group_signals
from rag_r1.config.schema import SamplerOptions
from rag_r1.io.retry import backoff
from rag_r1.options.problems import plain
from rag_r1.plugin import sessions
from rag_r1.plugin.group_filter import GroupFilter, reward_info
from rag_r1.plugin.sample_store import KVBatchMeta, read_rows, remove_rows, write_rows
from rag_r1.plugin.validation_rows import drop_masked_rows

logger = logging.getLogger(__name__)


class _SearchSamplerMixin(GroupFilter):
    """Mixin for veRL's replay buffers that removes masked trajectories and adds search metrics."""

    def __init__(self, *args: Any, sampler_kwargs: Any = None, **kwargs: Any):
        options = SamplerOptions.from_config(plain(sampler_kwargs))
        if options.poll_interval is not None:
            kwargs["poll_interval"] = options.poll_interval
        self.refills, self.refill_wait_s = options.refills, options.refill_wait_s
        super().__init__(*args, options=options, sampler_kwargs=sampler_kwargs, **kwargs)

    def sample(self, *args: Any, partition_id: str, batch_size: int, **kwargs: Any) -> tuple[Any, dict]:
        """Return veRL's batch of `batch_size` prompts without masked trajectories, and its metrics with
        those of the search.

        In training, a batch without any usable trajectory is replaced by another one, and these metrics are
        added: `search/left_out`, the number of trajectories that are not trained on; `search/lost`, how many
        trajectories of the batch's groups never arrived; and `search/refilled_batches`, how many batches were
        replaced. Raises RuntimeError if none of `refills` + 1 batches has a usable trajectory, and for the
        reasons of `GroupFilter.sample`.
        """
        failures: Counter[str] = Counter()
        for attempt in range(self.refills + 1):
            batch, metrics = super().sample(*args, partition_id=partition_id, batch_size=batch_size, **kwargs)
            if partition_id != "train":
                return drop_masked_rows(batch), metrics
            infos_by_session = reward_infos(batch)
            infos = [*infos_by_session.values(), *self.dropped_infos]
            keys, n_left_out = self._remove_unusable_rows(batch, infos_by_session)
            if keys:
                metrics = {**metrics, **search_metrics(infos), **group_metrics(infos_by_session)}
                metrics["search/left_out"] = float(n_left_out)
                if self.group_size:
                    n_groups = batch_size - metrics.get("search/short_groups", 0)
                    metrics["search/lost"] = float(n_groups * self.group_size - len(infos_by_session))
                if attempt:
                    metrics["search/refilled_batches"] = float(attempt)
                return (batch.select_keys(keys) if len(keys) < len(batch.keys) else batch), metrics
            failures.update(key for info in infos for key in info if key.startswith("failed_") and info[key])
            logger.error("no trajectory of a batch is usable; the failures so far: %s", dict(failures))
            if attempt < self.refills:
                time.sleep(backoff(self.refill_wait_s, attempt))
                self._verl_refill(batch_size)
        raise RuntimeError(
            f"no trajectory of {self.refills + 1} batches can be trained on, for failures that "
            f"rag_r1.failures.mask names: {dict(failures)}. See the warnings of the agent loop above, repair "
            "the cause, and start again: the run resumes from its last checkpoint"
        )

    def _remove_unusable_rows(
        self, batch: KVBatchMeta, infos_by_session: Mapping[str, dict[str, Any]]
    ) -> tuple[list[str], int]:
        """Remove the rows that are not trained on from the store. Returns the keys of the others, and the
        number of trajectories that were left out."""
        masked = [bool(infos_by_session[sessions.session_of(key)].get("masked")) for key in batch.keys]
        keys = trainable_keys(batch.keys, masked, self.group_size)
        n_left_out = len(infos_by_session) - len(sessions.group_by_session(keys))
        keys = rows_to_train(keys, batch.partition_id)
        kept_keys = set(keys)
        if removed_keys := [key for key in batch.keys if key not in kept_keys]:
            remove_rows(removed_keys, batch.partition_id)
        return keys, n_left_out


def reward_infos(batch: KVBatchMeta) -> dict[str, dict[str, Any]]:
    """Return the `reward_extra_info` of each trajectory of a batch, by session."""
    rows = sessions.last_rows(batch.keys)
    if not rows:
        return {}
    infos = map(reward_info, read_rows(rows, batch.partition_id, ["extra_fields"])["extra_fields"])
    return {sessions.session_of(key): info for key, info in zip(rows, infos, strict=True)}


def rows_to_train(keys: Sequence[str], partition_id: str) -> list[str]:
    """Return `keys` without the rows in which nothing was generated, if their trajectory has several rows
    (`sessions.trained_rows`). In the store, moves the rewards of such trajectories to generated tokens
    (`sessions.move_rewards`)."""
    session_keys = [key for rows in sessions.group_by_session(keys).values() if len(rows) > 1 for key in rows]
    if not session_keys:
        return list(keys)
    data = read_rows(session_keys, partition_id, ["response_mask", "rm_scores"])
    masks = [mask.tolist() for mask in data["response_mask"].unbind()]
    new_rewards = {}
    for key, mask, rewards in zip(session_keys, masks, data["rm_scores"].unbind(), strict=True):
        row_rewards = sessions.move_rewards(rewards.tolist(), mask)
        if row_rewards != rewards.tolist():
            new_rewards[key] = {"rm_scores": torch.tensor(row_rewards, dtype=rewards.dtype)}
    if new_rewards:
        write_rows(new_rewards, partition_id)
    generated = {key: any(mask) for key, mask in zip(session_keys, masks, strict=True)}
    return sessions.trained_rows(keys, {key: generated.get(key, True) for key in keys})


def trainable_keys(keys: Sequence[str], masked: Sequence[bool], group_size: int | None = None) -> list[str]:
    """Return the keys of the trajectories that can be trained on, in order.

    `masked` says for each key whether its row is masked. Trajectories with a masked row are left out, and so
    is the only trajectory that remains of a group which had several, or should have had (`group_size`).
    """
    excluded = {sessions.session_of(key) for key, is_masked in zip(keys, masked, strict=True) if is_masked}
    groups: dict[str, set[str]] = defaultdict(set)
    for key in keys:
        groups[sessions.prompt_of(key)].add(sessions.session_of(key))
    for members in groups.values():
        if len(members - excluded) == 1 < max(len(members), group_size or 1):
            excluded |= members
    return [key for key in keys if sessions.session_of(key) not in excluded]


def search_metrics(infos: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return means over trajectories, each of which has its `reward_extra_info` in `infos`:

    - `search/<name>` for each number in these infos,
    - `search/score/<source>`, the score for each data source,
    - `search/logprob_right` and `search/logprob_wrong`, the log-prob with a score above 0, and of the others,
    - `search/valid_actions`, the share of turns that are a search, a call or an answer,

    and `search/samples`, the number of trajectories.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for info in infos:
        for name, value in info.items():
            if isinstance(value, int | float):
                values[name].append(float(value))
        score, logprob = info.get("score"), info.get("logprob")
        if isinstance(score, int | float):
            values[f"score/{info.get('source')}"].append(float(score))
            if isinstance(logprob, int | float):
                values["logprob_right" if score > 0 else "logprob_wrong"].append(float(logprob))
    if turns := sum(values.get("turns", ())):
        values["valid_actions"] = [1 - sum(values["invalid_turns"]) / turns]
    means = {f"search/{name}": sum(numbers) / len(numbers) for name, numbers in values.items()}
    return {**means, "search/samples": float(len(infos))}


def group_metrics(infos_by_session: Mapping[str, dict[str, Any]]) -> dict[str, float]:
    """Return how much the rewards within a group differ, as `search/group_deviation` and
    `search/groups_without_signal`. `infos_by_session` is the result of `reward_infos`; masked trajectories
    have no reward there."""
    groups: dict[str, list[float]] = defaultdict(list)
    for session, info in infos_by_session.items():
        if isinstance(info.get("score"), int | float):
            groups[sessions.prompt_of(session)].append(float(info["score"]))
    return {f"search/{name}": value for name, value in group_signals(groups).items()}


class SearchReplayBuffer(_SearchSamplerMixin, ReplayBuffer):
    """For `trainer_mode=sync`."""


class SearchReplayBufferAsync(_SearchSamplerMixin, ReplayBufferAsync):
    """For veRL's asynchronous trainer modes."""
