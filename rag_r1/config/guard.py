"""The keys under `rag_r1.guard`: when a training counts as going wrong, and what is tried then.

The rules are in rag_r1/training/guard/rules.py, where each threshold is used; docs/guides/guard.md says from
which runs the defaults come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Strict

from rag_r1.options.declare import (
    Constraint,
    Count,
    Flag,
    PositiveCount,
    PositiveNumber,
    PositiveSeconds,
    Text,
    options,
    options_from,
)

Share = Annotated[float, Strict(), Field(ge=0, le=1), Constraint("a number from 0 to 1")]


@options("rag_r1.guard.ladder")
class Rung:
    """The changes of one restart: the learning rate is multiplied, and keys of the recipe are set."""

    learning_rate: PositiveNumber = 1.0
    set: Annotated[
        tuple[Text, ...],
        BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
        Constraint("a list of key=value"),
    ] = ()


def _rungs(value: Any) -> Any:
    """A list of mappings as a tuple of Rungs; anything else is left for pydantic to refuse."""
    if not isinstance(value, list):
        return value
    return tuple(options_from(Rung, rung) if isinstance(rung, Mapping) else rung for rung in value)


#: First a smaller learning rate; then a pull towards the policy from which the training began; then the loss
#: that keeps the likelihood of right answers (rag_r1/plugin/algorithms/llds.py), which acts where a step has
#: several updates.
_LADDER = (
    Rung(learning_rate=0.3),
    Rung(set=("actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.kl_loss_coef=0.01")),
    Rung(
        set=(
            "++actor_rollout_ref.actor.policy_loss._target_=rag_r1.plugin.algorithms.llds.LLDSConfig",
            "actor_rollout_ref.actor.policy_loss.loss_mode=llds",
            "++actor_rollout_ref.actor.policy_loss.llds_coef=0.2",
        )
    ),
)


@options("rag_r1.guard")
class GuardOptions:
    """Thresholds of the signs, and what a supervised training does about them."""

    #: Whether a training is watched.
    enabled: Flag = True
    #: Steps whose mean is compared with the best mean of as many steps before.
    window: PositiveCount = 2
    #: The part of the best share of right answers that may be lost, in training and held out.
    right_loss: Share = 0.25
    #: By how many standard deviations of a window's mean it must have fallen as well, beyond chance.
    right_deviations: PositiveNumber = 4.0
    #: Searches a question below this part of the most count as vanished.
    searches_left: Share = 0.5
    #: The part of valid turns that may be lost.
    valid_loss: Share = 0.15
    #: The likelihood of right answers may fall by so many nats a token, and to this multiple of its best.
    logprob_loss: PositiveNumber = 0.15
    logprob_factor: PositiveNumber = 4.0
    #: The entropy may rise by so many nats a token, and to this multiple of its start.
    entropy_gain: PositiveNumber = 0.3
    entropy_factor: PositiveNumber = 4.0
    #: The policy tries little if more groups than this have no signal, or less than this part of the entropy
    #: of its start is left.
    flat_groups: Share = 0.9
    entropy_left: Share = 0.05
    #: Mean difference of the probabilities of actor and engine; and the KL before the first update.
    probability_gap: PositiveNumber = 0.02
    stale_kl: PositiveNumber = 0.002
    #: The norm of a gradient may be this multiple of its median.
    gradient_factor: PositiveNumber = 10.0
    #: Trajectories that may be masked, and answers that may be cut off.
    masked: Share = 0.3
    cut_off: Share = 0.5
    #: Tokens that are trained on, for each token that was generated.
    trained_excess: PositiveNumber = 1.05
    #: `--supervise`: restarts at most, and the steps before a sign that are given up with it.
    max_restarts: Count = 3
    margin: Count = 2
    #: Checkpoints that are kept whatever veRL removes, the older the further apart.
    kept_checkpoints: PositiveCount = 4
    #: Seconds without a finished step or a validation after which a training counts as hanging; and this
    #: multiple of its longest step so far.
    hang_s: PositiveSeconds = 1800.0
    hang_factor: PositiveNumber = 10.0
    #: The settings of the restarts after a sign, in turn; the last one stays.
    ladder: Annotated[
        tuple[Rung, ...], BeforeValidator(_rungs), Constraint("a list of {learning_rate, set}")
    ] = _LADDER
