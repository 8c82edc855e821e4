"""The keys under `rag_r1.guard`: when a training counts as going wrong, and what is done then.

A training goes wrong if it shows a sign, such as a fall of the right answers. The thresholds of the signs are
used by the rules in rag_r1/training/guard/rules.py. docs/guides/guard.md describes the runs from which the
defaults were derived.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Strict

from rag_r1.options.declare import options
from rag_r1.options.from_config import options_from
from rag_r1.options.types import Constraint, Count, Flag, PositiveCount, PositiveNumber, PositiveSeconds, Text

Share = Annotated[float, Strict(), Field(ge=0, le=1), Constraint("a number from 0 to 1")]


@options("rag_r1.guard.ladder")
class Rung:
    """The changed settings of one restart."""

    #: The factor by which the learning rate is multiplied.
    learning_rate: PositiveNumber = 1.0
    #: Overrides of the recipe, as key=value.
    set: Annotated[tuple[Text, ...], Constraint("a list of key=value")] = ()


def _rungs(value: Any) -> Any:
    """Convert a list of mappings to a tuple of Rungs, and leave anything else for pydantic to refuse."""
    if not isinstance(value, list):
        return value
    return tuple(options_from(Rung, rung) if isinstance(rung, Mapping) else rung for rung in value)


#: First a smaller learning rate, then a KL term that pulls towards the initial policy, and then the loss that
#: keeps up the likelihood of right answers (rag_r1/plugin/algorithms/llds.py). That loss has an effect only
#: if a step has several updates.
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
    #: The number of steps whose mean is compared with the best earlier mean of as many steps. The share of
    #: right answers is also compared in single steps, and in four times as many steps.
    window: PositiveCount = 2
    #: The part of the best share of right answers that may be lost, in training and in validation.
    right_loss: Share = 0.25
    #: The fall of right answers must also exceed this many standard deviations of a window's mean, besides
    #: the sqrt(2 ln n) by which the best of n windows exceeds the others by chance.
    right_deviations: PositiveNumber = 4.0
    #: Searches count as vanished if less than this part of the most searches per question is left.
    searches_left: Share = 0.5
    #: The largest fall of the share of valid turns.
    valid_loss: Share = 0.15
    #: The largest fall of the mean log-prob of right answers, in nats per token ...
    logprob_loss: PositiveNumber = 0.15
    #: ... and the multiple of its best value that it must also exceed.
    logprob_factor: PositiveNumber = 4.0
    #: The largest rise of the entropy, in nats per token ...
    entropy_gain: PositiveNumber = 0.3
    #: ... and the multiple of its initial value that it must also exceed.
    entropy_factor: PositiveNumber = 4.0
    #: Exploration counts as ended if more than this share of the groups has no signal ...
    flat_groups: Share = 0.9
    #: ... or if less than this part of the initial entropy is left.
    entropy_left: Share = 0.05
    #: The largest mean difference between the probabilities of actor and engine.
    probability_gap: PositiveNumber = 0.02
    #: The largest KL between actor and engine before the first update of a step.
    stale_kl: PositiveNumber = 0.002
    #: The largest norm of a gradient, as a multiple of the median norm.
    gradient_factor: PositiveNumber = 10.0
    #: The largest share of masked trajectories, and of failed calls.
    masked: Share = 0.3
    #: The largest share of trajectories that reach the limit of their length.
    cut_off: Share = 0.5
    #: The largest number of trained tokens for each generated token.
    trained_excess: PositiveNumber = 1.05
    #: With `--supervise`: the largest number of restarts.
    max_restarts: Count = 3
    #: With `--supervise`: this many steps before a sign are given up, too.
    margin: Count = 2
    #: The number of checkpoints that are kept even if veRL removes them; older ones are further apart.
    kept_checkpoints: PositiveCount = 4
    #: A training hangs if it has finished no step and no validation for this many seconds ...
    hang_s: PositiveSeconds = 1800.0
    #: ... and for this multiple of its longest step so far.
    hang_factor: PositiveNumber = 10.0
    #: The settings of the restarts after a sign, in order. Each is added to the earlier ones.
    ladder: Annotated[
        tuple[Rung, ...], BeforeValidator(_rungs), Constraint("a list of {learning_rate, set}")
    ] = _LADDER
