"""veRL's trainers that also record advantages: `trainer.v1.trainer_mode=search_<veRL's mode>`.

A trajectory record is written as soon as its reward is known. Its advantage depends on the rest of its group,
and veRL computes it later, in the trainer. These trainers override that one method: after
`_compute_advantage` they read the batch's advantages, masks and rewards back from veRL's store, and append a
line for each trajectory to `<rag_r1.trajectory_dir>/advantages/step_<step>-<process>.ndjson`:

    step                          the step
    group, sample                 identify the record: its group, and the number after `#` in its id
    score                         the reward that the trainer used
    advantage                     the mean over the generated tokens, which all have the same one in GRPO
    advantage_min, advantage_max  the extremes over the generated tokens
    trained_tokens                the number of tokens on which the loss is computed
    group_size                    the number of trajectories of the group in this batch
    group_mean, group_std         mean and sample deviation of their scores

They also log these metrics:

- `search/trained_tokens` is the mean number of tokens on which the loss of a trajectory is computed. If it
  exceeds `search/generated_tokens`, the policy is trained on text that the environment wrote.
- `search/logprob_gap_mean` and `search/logprob_gap_max` compare the log-probs of the actor with those of the
  engine on generated tokens, in nats, if the actor computes its own. (veRL's `training/rollout_probs_diff`
  compares probabilities, where differences of unlikely tokens do not show.)
- `search/recording_s` is the time that all of this takes.

The metrics that are known before the update are also written for the guard (runs/rollout_metrics.py). If the
disk is full, the lines are lost and the run continues.

veRL finds a trainer by its name (`register_trainer`). Its base class compares that name with "sync" in six
places, so the constructor puts the name of veRL's own mode back into the configuration. The keys of a mode
stay under veRL's name (`trainer.v1.separate_async.parameter_sync_step`).
"""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.v1 import (
    PPOTrainerColocateAsync,
    PPOTrainerSeparateAsync,
    PPOTrainerSync,
    register_trainer,
)

from rag_r1.agent.records import append_records
from rag_r1.plugin.algorithms.turn_loo import uses_turn_loo
from rag_r1.plugin.sample_store import KVBatchMeta, read_rows, unpadded_keys
from rag_r1.plugin.sessions import group_by_session, prompt_of
from rag_r1.runs.rollout_metrics import rollouts_file_here

logger = logging.getLogger(__name__)

_FIELDS = ("advantages", "response_mask", "rm_scores")


class RecordingMixin:
    """Mixin for a trainer of veRL that writes advantages and metrics as soon as the advantages are
    computed."""

    #: The name under which veRL registers the trainer.
    verls_mode: str

    def __init__(self, config: DictConfig):
        config.trainer.v1.trainer_mode = self.verls_mode
        # With `hybrid_engine=false` veRL 0.9.1 fails at a log call of level INFO that passes `flush`, an
        # argument that loggers do not take (trainer_separate_async.py, `PPOTrainerSeparateAsync._setup`).
        logging.getLogger(PPOTrainerSeparateAsync._setup.__module__).setLevel(logging.WARNING)
        super().__init__(config)

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Compute the reference's log-probs as veRL does, then remove veRL's mark that the actor's adapters
        are to be left out. The batch keeps it, and veRL's critic, which has none, would fail at it
        (engine_workers.py, `infer_batch`)."""
        batch = super()._compute_ref_log_prob(batch, metrics)
        batch.extra_info.pop("no_lora_adapter", None)
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Compute the advantages as veRL does, then write them and add to `metrics`."""
        batch = super()._compute_advantage(batch, metrics)
        started = time.perf_counter()
        lines = list(advantage_lines(batch, self.global_steps, by_turn=uses_turn_loo(self.config)))
        if lines:
            metrics["search/trained_tokens"] = fmean(line["trained_tokens"] for line in lines)
            if self._has_both_log_probs():
                metrics.update(logprob_gaps(batch))
        if folder := OmegaConf.select(self.config, "rag_r1.trajectory_dir"):
            path = Path(folder) / "advantages" / f"step_{self.global_steps:06d}-{os.getpid()}.ndjson"
            try:
                append_records(path, *lines)
            except OSError as error:
                logger.error(
                    "cannot write the advantages of step %d to %s: %s", self.global_steps, path, error
                )
        self._write_rollouts(metrics)
        metrics["search/recording_s"] = time.perf_counter() - started
        return batch

    def _has_both_log_probs(self) -> bool:
        """Return whether a batch has log-probs both of the engine and of the actor."""
        correction = OmegaConf.select(self.config, "algorithm.rollout_correction") or {}
        has_rollout_log_probs = OmegaConf.select(self.config, "actor_rollout_ref.rollout.calculate_log_probs")
        return bool(has_rollout_log_probs) and not correction.get("bypass_mode")

    def _write_rollouts(self, metrics: dict) -> None:
        """Write the step's metrics for the guard, if the step trains on its batch as a whole."""
        path = rollouts_file_here()
        # The means of a part of the batch vary more by chance, which would look like a sign to the guard.
        if path is None or self.parameter_sync_step != 1:
            return
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
        try:
            append_records(path, {"step": self.global_steps, "data": numbers})
        except OSError as error:
            logger.error("the guard will see step %d only after its end: %s", self.global_steps, error)


def logprob_gaps(batch: KVBatchMeta) -> dict[str, float]:
    """Return the metrics `search/logprob_gap_mean` and `search/logprob_gap_max`: the mean and the maximum of
    the absolute difference between the log-probs of engine and actor on the generated tokens of a batch, in
    nats. Returns {} if nothing was generated."""
    keys = unpadded_keys(batch)
    fields = ("response_mask", "rollout_log_probs", "old_log_probs")
    data = read_rows(keys, batch.partition_id, fields)
    rows = zip(*(data[name].unbind() for name in fields), strict=True)
    gaps = torch.cat([(engine - actor).abs()[mask.bool()] for mask, engine, actor in rows])
    if not len(gaps):
        return {}
    return {
        "search/logprob_gap_mean": float(gaps.double().mean()),
        "search/logprob_gap_max": float(gaps.max()),
    }


def advantage_lines(batch: KVBatchMeta, step: int, *, by_turn: bool = False) -> Iterator[dict[str, Any]]:
    """Yield a line of the file of advantages for each trajectory of a batch.

    The advantages must be in the store. With `by_turn`, each row has the rewards of its own turns. Otherwise
    all rows of a trajectory have its whole reward.
    """
    keys = unpadded_keys(batch)
    if not keys:
        return
    data = read_rows(keys, batch.partition_id, _FIELDS)
    advantages, masks, rewards = (dict(zip(keys, data[name].unbind(), strict=True)) for name in _FIELDS)
    sessions = group_by_session(keys)
    # GRPO takes the reward of the last row.
    rows_by_session = {name: rows if by_turn else rows[-1:] for name, rows in sessions.items()}
    scores = {name: sum(float(rewards[key].sum()) for key in rows) for name, rows in rows_by_session.items()}
    groups: dict[str, list[float]] = defaultdict(list)
    for name, score in scores.items():
        groups[prompt_of(name)].append(score)
    for name, rows in sessions.items():
        generated = torch.cat([advantages[key][masks[key].bool()] for key in rows])
        generated = generated if len(generated) else torch.zeros(1)
        group = groups[prompt_of(name)]
        yield {
            "step": step,
            "group": prompt_of(name),
            "sample": int(name.rpartition("_")[2]),
            "score": scores[name],
            "advantage": float(generated.mean()),
            "advantage_min": float(generated.min()),
            "advantage_max": float(generated.max()),
            "trained_tokens": sum(int(masks[key].sum()) for key in rows),
            "group_size": len(group),
            "group_mean": fmean(group),
            "group_std": stdev(group) if len(group) > 1 else 0.0,
        }


@register_trainer("search_sync")
class SearchTrainerSync(RecordingMixin, PPOTrainerSync):
    """For `trainer_mode=sync`."""

    verls_mode = "sync"


@register_trainer("search_colocate_async")
class SearchTrainerColocateAsync(RecordingMixin, PPOTrainerColocateAsync):
    """For `trainer_mode=colocate_async`."""

    verls_mode = "colocate_async"


@register_trainer("search_separate_async")
class SearchTrainerSeparateAsync(RecordingMixin, PPOTrainerSeparateAsync):
    """For `trainer_mode=separate_async`."""

    verls_mode = "separate_async"
