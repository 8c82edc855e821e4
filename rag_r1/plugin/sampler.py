"""veRL's replay buffers, with masked trajectories removed and search metrics added.

The sampler is named in veRL's configuration (`trainer.v1.sampler.custom_sampler`). veRL gets each training
batch from it and adds the metrics that it returns to those of the step. The sampler does four things.

**It removes masked trajectories from the batch** (`rag_r1.failures`; the reward manager marks them). The
response mask of such a trajectory is 0, which keeps it out of the loss, but its reward would still count in
the mean of its GRPO group: an outage of the search engine would make the rest of the group look good. If only
one trajectory of a group is left, it has nothing to be compared with, and veRL would use its plain reward as
the advantage (core_algos.py, `compute_grpo_outcome_advantage`): it is removed too. veRL pads the batch to the
size that its mini-batches require. If nothing is left of a batch, another is generated from the next prompts
after a wait, at most `refills` times; then the run ends with an error, since further attempts are not likely
to succeed. Masked trajectories of a validation are left out of its means as well (validation_rows.py), and
groups with equal rewards can be replaced (DAPO, group_filter.py).

**It logs how the policy searches during training**, as `search/<name>`: veRL logs each term of a reward for
validation, but only the total for training. The means are over the trajectories that arrived, masked ones
included (their terms count as unknown). All counts are of trajectories, however many rows they have.

**It prepares trajectories of several rows** (sessions.py) for veRL's advantages: rows in which nothing was
generated are removed, and the reward of a row is moved to a generated token.

**It receives settings that veRL does not pass to a custom sampler** (trainer_base.py,
`_build_replay_buffer`). They are keys of `trainer.v1.sampler.sampler_kwargs` here: `poll_interval` in seconds
(veRL looks for finished trajectories every 2 s, which is longer than a whole step of a small policy), and
those of group_filter.py. Our own keys there are `refills`, `refill_wait_s` (seconds before the first refill,
doubled each time), and `group_size`, with which trajectories that never arrived are counted.
`rag_r1.config.schema.SamplerOptions` declares them.
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
    """Mixin: reads our keys of `sampler_kwargs`, removes masked trajectories, adds search metrics."""

    def __init__(self, *args: Any, sampler_kwargs: Any = None, **kwargs: Any):
        options = SamplerOptions.from_config(plain(sampler_kwargs))
        if options.poll_interval is not None:
            kwargs["poll_interval"] = options.poll_interval
        self.refills, self.refill_wait_s = options.refills, options.refill_wait_s
        super().__init__(*args, options=options, sampler_kwargs=sampler_kwargs, **kwargs)

    def sample(self, *args: Any, partition_id: str, batch_size: int, **kwargs: Any) -> tuple[Any, dict]:
        """Returns veRL's batch of `batch_size` prompts and its metrics: without masked trajectories, with the
        search metrics, and in training with another batch in place of one that is wholly masked. Raises
        RuntimeError if every trajectory of `refills` + 1 batches is masked."""
        failures: Counter[str] = Counter()
        for attempt in range(self.refills + 1):
            batch, metrics = super().sample(*args, partition_id=partition_id, batch_size=batch_size, **kwargs)
            if partition_id != "train":
                return drop_masked_rows(batch), metrics
            infos_by_session = reward_infos(batch)
            masked = [bool(infos_by_session[sessions.session_of(key)].get("masked")) for key in batch.keys]
            keys = trainable_keys(batch.keys, masked, self.group_size)
            n_left_out = len(infos_by_session) - len(sessions.group_by_session(keys))
            keys = rows_to_train(keys, partition_id)
            kept_keys = set(keys)
            if removed_keys := [key for key in batch.keys if key not in kept_keys]:
                remove_rows(removed_keys, partition_id)
            infos = [*infos_by_session.values(), *self.dropped_infos]
            if keys:
                metrics = {**metrics, **search_metrics(infos), **group_metrics(infos_by_session)}
                metrics["search/left_out"] = float(n_left_out)
                if self.group_size:
                    groups = batch_size - metrics.get("search/short_groups", 0)
                    metrics["search/lost"] = float(groups * self.group_size - len(infos_by_session))
                if attempt:
                    metrics["search/refilled_batches"] = float(attempt)
                return (batch.select_keys(keys) if removed_keys else batch), metrics
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


def reward_infos(batch: KVBatchMeta) -> dict[str, dict[str, Any]]:
    """What the reward manager returned for each trajectory of a batch, by session."""
    rows = sessions.last_rows(batch.keys)
    if not rows:
        return {}
    fields = read_rows(rows, batch.partition_id, ["extra_fields"])
    infos = map(reward_info, fields["extra_fields"])
    return {sessions.session_of(key): info for key, info in zip(rows, infos, strict=True)}


def rows_to_train(keys: Sequence[str], partition_id: str) -> list[str]:
    """`keys` without the rows of trajectories of several rows in which nothing was generated
    (`trained_rows`). In the store, the rewards of their other rows are moved to generated tokens
    (`move_rewards`)."""
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
    """The keys that can be trained on, in order: those of trajectories without a masked row, except the only
    one left of a group that had, or should have had (`group_size`), several."""
    excluded = {sessions.session_of(key) for key, is_masked in zip(keys, masked, strict=True) if is_masked}
    groups: dict[str, set[str]] = defaultdict(set)
    for key in keys:
        groups[sessions.prompt_of(key)].add(sessions.session_of(key))
    for members in groups.values():
        if len(members - excluded) == 1 < max(len(members), group_size or 1):
            excluded |= members
    return [key for key in keys if sessions.session_of(key) not in excluded]


def search_metrics(infos: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns means of what the reward manager returned for each trajectory, as `search/<name>`; of the
    scores of each data source, as `search/score/<source>`; of the log-probs of trajectories with a score
    above 0 and of the others, as `search/logprob_right` and `search/logprob_wrong`; and the share of turns
    that are a search, a call or an answer, as `search/valid_actions`."""
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
    """Says how much the rewards of a prompt's trajectories differ, as `search/group_deviation` and
    `search/groups_without_signal`; masked ones have none. `infos_by_session`: what the reward manager
    returned for each trajectory."""
    groups: dict[str, list[float]] = defaultdict(list)
    for session, info in infos_by_session.items():
        if isinstance(info.get("score"), int | float):
            groups[sessions.prompt_of(session)].append(float(info["score"]))
    return {f"search/{name}": value for name, value in group_signals(groups).items()}


class SearchReplayBuffer(_SearchSamplerMixin, ReplayBuffer):
    """For `trainer_mode=sync`."""


class SearchReplayBufferAsync(_SearchSamplerMixin, ReplayBufferAsync):
    """For veRL's asynchronous trainer modes."""
