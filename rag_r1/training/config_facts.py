"""Facts that follow from a composed configuration: the GPUs, roles and adapters of a training.

The checks, the estimates and the table of recipes all use these functions, so that they interpret the
configuration in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rag_r1.options.problems import plain

if TYPE_CHECKING:
    from omegaconf import DictConfig

#: The key with the names of what a checkpoint of the actor contains.
SAVE_CONTENTS = "actor_rollout_ref.actor.checkpoint.save_contents"
#: veRL's trainer modes.
VERLS_MODES = ("sync", "colocate_async", "separate_async")
#: The module that registers the engine for weights in nf4.
NF4_ENGINE = "rag_r1.plugin.nf4.register"


def gpu_count(config: DictConfig) -> int:
    """Return the number of GPUs that train; on a CPU, that of the processes that do."""
    return int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node)


def verls_mode(mode: object) -> str:
    """Return veRL's own name of a trainer mode, e.g. `sync` for `search_sync` and `sessions_sync`."""
    return str(mode).removeprefix("sessions_").removeprefix("search_")


def is_separate(config: DictConfig) -> bool:
    """Return whether training and generation use separate GPUs."""
    return verls_mode(config.trainer.v1.trainer_mode) == "separate_async"


def is_asynchronous(config: DictConfig) -> bool:
    """Return whether trajectories may have been generated with earlier weights than those that they train."""
    return verls_mode(config.trainer.v1.trainer_mode) in ("colocate_async", "separate_async")


def needs_critic(config: DictConfig) -> bool:
    """Return whether a critic is trained."""
    enabled = config.critic.enable
    return bool(enabled) if enabled is not None else config.algorithm.adv_estimator == "gae"


def needs_reference(config: DictConfig) -> bool:
    """Return whether a KL term needs the reference policy."""
    return bool(config.algorithm.get("use_kl_in_reward") or config.actor_rollout_ref.actor.use_kl_loss)


def saves_checkpoints(config: DictConfig) -> bool:
    """Return whether checkpoints are saved: at intervals, and after the last step. They are not if
    `trainer.save_freq` is no number."""
    interval = config.trainer.get("save_freq")
    return isinstance(interval, int | float) and interval > 0


def saved_contents(config: DictConfig) -> list[str]:
    """Return what a checkpoint of the actor contains; [] if `SAVE_CONTENTS` is not a list."""
    contents = plain(config.actor_rollout_ref.actor.checkpoint.get("save_contents"))
    return list(map(str, contents)) if isinstance(contents, list) else []


def adapter_rank(config: DictConfig) -> int:
    """Return the rank of the policy's LoRA adapters; 0 if all weights are trained."""
    model = config.actor_rollout_ref.get("model") or {}
    return int((model.get("lora") or {}).get("rank") or 0) or int(model.get("lora_rank") or 0)


def is_nf4(config: DictConfig) -> bool:
    """Return whether adapters are trained over weights in nf4 (rag_r1/plugin/nf4/register.py)."""
    model = config.actor_rollout_ref.get("model") or {}
    return NF4_ENGINE in str(model.get("external_lib") or "")
