"""The policy loss `llds`: veRL's clipped loss, plus a penalty where the likelihood of right turns falls.

In GRPO with a search engine, the likelihood of right answers also falls, because wrong answers that begin in
the same way push it down. This ends in a collapse (arXiv 2512.04220, "Lazy Likelihood Displacement"). LLDS
adds a penalty. This is its form with the gate on actions, which the authors' repository recommends with the
coefficient 0.2 (vengdeng/LLDS-On-Group-Relative-Policy-Optimization-Collapse-in-Search-R1):

    d_t       = old_t - new_t                     the fall of a token's log-prob, in nats
    keep_t    = mask_t and advantage_t >= 0       whether it is a generated token of a right answer
    r(t)      = the unbroken run of `keep` around t
    penalty_t = max(0, d_t) if the sum of d over r(t) is above 0, else 0
    loss      = vanilla + llds_coef x the penalties, aggregated in the mode of the loss

Two turns of an episode are separated by an observation, which the mask excludes. So a run is a turn, and two
turns without an observation between them are one run. A run never extends over several rows, and neither does
a turn. So the loss does not depend on the number of a trajectory's rows, nor on how rows are distributed over
micro-batches. As published, a group with equal rewards has the advantage 0 and counts as right.

The metrics say how far the displacement has gone, even with the coefficient 0: `actor/llds_fallen_share` is
the share of the turns of right answers whose likelihood fell, and `actor/llds_right_turns` and
`actor/llds_fallen_turns` are the counts. veRL logs means over micro-batches, and the mean share counts a
micro-batch without right turns as 0. So the share of a whole batch is the quotient of the counts.

The recipes use this loss with `preset=llds` (recipes/preset/llds.yaml). It compares the policy with that at
the beginning of the step. In the first update of a step the two are the same, and d is 0 except for rounding.
So the preflight warns if a step has one update only (rag_r1/training/preflight/settings.py). With
`bypass_mode` the old log-probs are those of the rollout engine, and d is not 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, register_policy_loss
from verl.workers.config.actor import ActorConfig, PolicyLossConfig


@dataclass
class LLDSConfig(PolicyLossConfig):
    """The block `actor_rollout_ref.actor.policy_loss`, whose `_target_` names this class.

    With `llds_coef` 0 the loss is veRL's, and only the metrics are added. Raises ValueError for a coefficient
    that is negative or not a number.
    """

    loss_mode: str = "llds"
    llds_coef: float = 0.2

    def __post_init__(self) -> None:
        coef = self.llds_coef
        if isinstance(coef, bool) or not isinstance(coef, int | float) or not 0 <= coef < math.inf:
            key = "actor_rollout_ref.actor.policy_loss.llds_coef"
            raise ValueError(f"{key} is {coef!r}, but must be a number of at least 0")


@register_policy_loss("llds")
def llds_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: ActorConfig | None = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return the loss of a micro-batch, a scalar, and its metrics.

    All tensors have the shape (rows, tokens), and the log-probs are in nats. `rollout_is_weights` weigh
    veRL's loss and not the penalty. Raises ValueError if the actor's `policy_loss` is not an LLDSConfig.
    """
    if config is None or not isinstance(config.policy_loss, LLDSConfig):
        raise ValueError(
            "the loss `llds` takes its coefficient from rag_r1.plugin.algorithms.llds.LLDSConfig: use "
            "preset=llds, or set actor_rollout_ref.actor.policy_loss._target_ to that class"
        )
    loss, metrics = get_policy_loss_fn("vanilla")(
        old_log_prob=old_log_prob,
        log_prob=log_prob,
        advantages=advantages,
        response_mask=response_mask,
        loss_agg_mode=loss_agg_mode,
        config=config,
        rollout_is_weights=rollout_is_weights,
    )
    fallen = fallen_turns(old_log_prob, log_prob, response_mask.bool() & (advantages >= 0))
    if config.policy_loss.llds_coef:
        penalty = agg_loss(
            loss_mat=fallen.penalties,
            loss_mask=response_mask,
            loss_agg_mode=loss_agg_mode,
            **config.global_batch_info,
        )
        loss = loss + config.policy_loss.llds_coef * penalty
    return loss, {
        **metrics,
        "actor/llds_fallen_share": fallen.n_fallen / fallen.n_right if fallen.n_right else 0.0,
        "actor/llds_right_turns": float(fallen.n_right),
        "actor/llds_fallen_turns": float(fallen.n_fallen),
    }


class FallenTurns(NamedTuple):
    """The fall of the right turns of a micro-batch."""

    #: The penalty of each token, (rows, tokens), with a gradient for the new log-probs where it is above 0.
    penalties: torch.Tensor
    #: The number of right turns, and how many of these fell.
    n_right: int
    n_fallen: int


def fallen_turns(old_log_prob: torch.Tensor, log_prob: torch.Tensor, kept: torch.Tensor) -> FallenTurns:
    """Return how far the turns that are runs of `kept` fell. All arguments have the shape (rows, tokens)."""
    fall = torch.where(kept, old_log_prob.detach() - log_prob, 0.0)
    begins_run = kept.clone()
    begins_run[:, 1:] &= ~kept[:, :-1]
    # The number of each token's run, from 1; 0 for a token in none.
    run_numbers = begins_run.flatten().cumsum(0).view_as(kept) * kept
    run_falls = fall.new_zeros(int(run_numbers.max()) + 1 if kept.any() else 1)
    run_falls.index_add_(0, run_numbers.flatten(), fall.detach().flatten())
    has_fallen = run_falls > 0
    has_fallen[0] = False
    return FallenTurns(torch.relu(fall) * has_fallen[run_numbers], len(run_falls) - 1, int(has_fallen.sum()))
