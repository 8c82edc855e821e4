"""Checks that no setting counts a trajectory twice, if the protocol rewrites its context.

Such a trajectory is trained as several rows. Its weight in the group, the weight of its tokens in the losses
and the number of updates must be the same as with one row (rag_r1/plugin/sessions.py describes how that is
achieved). It is impossible with some settings of veRL, which are refused with the reasons given below. With
any other protocol a trajectory is one row, and nothing is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rag_r1.config.schema import RagR1Config
from rag_r1.options.problems import Problem, error
from rag_r1.training.config_facts import needs_critic, verls_mode

_PREFIX = "sessions_"
_MODE = "trainer.v1.trainer_mode"
_ACTOR = "actor_rollout_ref.actor"
_CORRECTION = "algorithm.rollout_correction"
REWARD_POOL = "reward.reward_model.enable_resource_pool"
#: Keys of the critic that must equal the actor's: the mini-batch, and those that determine the number of
#: ranks.
_SHARED_KEYS = (
    *("ppo_mini_batch_size", "strategy", "ulysses_sequence_parallel_size"),
    "fsdp.ulysses_sequence_parallel_size",
)

#: Aggregations that sum over tokens, and may divide by their number. The others treat each row as a sequence.
EXACT_AGGREGATIONS = ("token-mean", "token-sum")
#: Losses in which the term of a token does not depend on the other rows of a micro-batch (with our llds, on
#: the other turns). All others do depend on them, or have not been checked.
EXACT_LOSSES = ("vanilla", "dppo_tv", "dppo_kl", "gpg", "dro", "cispo", "llds")
#: Estimators that do not count rows: GRPO uses one row of a session, gae and reinforce_plus_plus give every
#: token the reward and whiten over tokens, and turn_loo is computed for whole sessions. All others count
#: rows, or have not been checked.
EXACT_ESTIMATORS = ("grpo", "gae", "reinforce_plus_plus", "turn_loo")


def splits_sessions(settings: RagR1Config | None) -> bool:
    """Return whether trajectories can have several rows, because the protocol rewrites its context."""
    return bool(getattr(getattr(settings, "protocol", None), "rewrites_context", False))


def check_sessions(config: DictConfig, settings: RagR1Config | None) -> Iterator[Problem]:
    """Check that the trainer keeps the rows of a trajectory together and that no setting counts rows, if
    trajectories can have several rows."""
    if splits_sessions(settings):
        yield from _check_trainer(config)
        yield from _check_losses(config)
        yield from _check_advantages(config)


def _check_trainer(config: DictConfig) -> Iterator[Problem]:
    """Check that each mini-batch of the actor and of the critic has whole trajectories."""
    mode = str(config.trainer.v1.trainer_mode)
    if not mode.startswith(_PREFIX):
        reason = "makes mini-batches by rows, which splits trajectories and makes more updates"
        yield _refusal(_MODE, mode, reason, [_PREFIX + verls_mode(mode)])
    for role in _trained_roles(config):
        yield from _require(config, f"{role}.shuffle", (False,), "shuffles rows, which splits trajectories")
    for key in _SHARED_KEYS if needs_critic(config) else ():
        actor_value = OmegaConf.select(config, f"{_ACTOR}.{key.replace('fsdp.', 'fsdp_config.')}")
        reason = "differs from the actor's, but both get the same rows in the same order"
        yield from _require(config, f"critic.{key}", (actor_value,), reason)


def _check_losses(config: DictConfig) -> Iterator[Problem]:
    """Check that every token has the same weight in the loss as in a single row."""
    for role in _trained_roles(config):
        reason = "treats each row as a separate sequence"
        yield from _require(config, f"{role}.loss_agg_mode", EXACT_AGGREGATIONS, reason)
    reason = "may make the loss of a token depend on the other tokens of its row or micro-batch"
    yield from _require(config, f"{_ACTOR}.policy_loss.loss_mode", EXACT_LOSSES, reason)
    reason = "weights each row by its own tokens, and not the trajectory"
    yield from _require(config, f"{_CORRECTION}.rollout_is", (None, "token"), reason)
    reason = "can reject a whole last row, from which GRPO takes the advantage of the trajectory"
    yield from _require(config, f"{_CORRECTION}.rollout_rs", (None,), reason)
    reason = "calls the teacher for the last row of a trajectory only"
    yield from _require(config, "distillation.enabled", (False,), reason)


def _check_advantages(config: DictConfig) -> Iterator[Problem]:
    """Check that every token has the same advantage as in a single row, and that a trajectory counts once in
    its group."""
    estimator = str(config.algorithm.adv_estimator)
    reason = "may count each row as a trajectory"
    yield from _require(config, "algorithm.adv_estimator", EXACT_ESTIMATORS, reason)
    reason = "leaves out the penalties of later rows (actor_rollout_ref.actor.use_kl_loss does not)"
    yield from _require(config, "algorithm.use_kl_in_reward", (False,), reason)
    if estimator in ("gae", "reinforce_plus_plus"):
        reason = "discounts the reward within each row, at whose end it is, and not within the trajectory"
        yield from _require(config, "algorithm.gamma", (1.0,), reason)
    if estimator == "gae":
        yield from _require(config, "algorithm.lam", (1.0,), "leaves out the values of later rows")
        yield from _require(config, "algorithm.use_pf_ppo", (False,), "draws rows, and not trajectories")
    if shares_reward_model(config):
        reason = "lets the reward model judge each row by itself"
        yield _refusal(REWARD_POOL, False, reason, [True])


def shares_reward_model(config: DictConfig) -> bool:
    """Return whether a reward model shares the GPUs of the training, and judges rows after they are
    sampled."""
    model = OmegaConf.select(config, "reward.reward_model")
    return model is not None and bool(model.get("enable")) and not model.get("enable_resource_pool")


def _trained_roles(config: DictConfig) -> list[str]:
    return [_ACTOR, "critic"] if needs_critic(config) else [_ACTOR]


def _require(config: DictConfig, key: str, allowed: Sequence[Any], reason: str) -> Iterator[Problem]:
    """Yield a Problem unless the value of a key is allowed. A switch that is absent counts as off."""
    value = OmegaConf.select(config, key)
    if value not in allowed and not (value is None and False in allowed):
        yield _refusal(key, value, reason, allowed)


def _refusal(key: str, value: Any, reason: str, allowed: Sequence[Any]) -> Problem:
    """Return the Problem of a value that is not allowed. `reason` continues a sentence about the value."""
    text = f"with a protocol that rewrites its context, {_yaml(value)} {reason}"
    return error(key, text, f"set {key}={' or '.join(map(_yaml, allowed))}")


def _yaml(value: Any) -> str:
    """Return a value as it is written in an override."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
