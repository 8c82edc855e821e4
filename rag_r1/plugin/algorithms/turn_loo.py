"""The advantage estimator `turn_loo`: credit for each turn, with a leave-one-out baseline.

Several trajectories are played for each question; the others are a trajectory's siblings. The advantage of
its turn k is

    A(k) = G(k) - b(k)
    G(k) = the sum of its rewards from turn k on (return-to-go)
    b(k) = the mean of the siblings' G(k), over those that have a turn k
           or, if none has: the mean of the siblings' whole rewards, minus its own rewards before turn k
           or, without any sibling: 0

for all tokens of the turn. It is not divided by a standard deviation. The siblings are independent of the
trajectory, and its own past is known before turn k, so b(k) does not depend on what the policy does in turn
k. By the policy gradient theorem, the expected gradient is therefore exactly that of the expected reward, as
a sum over turns and a mean over trajectories. (For single turns this is RLOO, arXiv 2402.14740.) The gradient
would be biased if the mean over "all that are alive at turn k" included the trajectory itself, because
whether it is alive depends on its earlier turns; tests/plugin/test_turn_loo.py computes both on a small
process.

A turn is an unbroken run of the response mask in a row, so two turns without an observation between them
count as one. Its reward is on its last generated token, where `place_turn_scores` puts it. A row without a
generated token (padding) is not a sibling. If the context is rewritten, a trajectory has several rows, which
follow one another, and a turn ends with its row (`turn_loo_of_sessions`, which session_trainer.py calls).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from verl.trainer.ppo.core_algos import register_adv_est

#: The name under which veRL's configuration selects the estimator.
NAME = "turn_loo"


def uses_turn_loo(config: Any) -> bool:
    """Return whether a composed configuration selects this estimator."""
    return (config.get("algorithm") or {}).get("adv_estimator") == NAME


@register_adv_est(NAME)
def turn_loo_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[Any],
    config: Any = None,
    **unused: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the advantages and the returns, which are 0 where the mask is 0.

    Both have the shape of the rewards and of the mask, (rows, tokens). `index` is the question of each row,
    and `config` is part of veRL's signature and unused.
    """
    advantages = torch.zeros_like(token_level_rewards)
    returns = torch.zeros_like(token_level_rewards)
    turns = _turns(token_level_rewards, response_mask)
    groups: dict[Any, list[_RowTurns]] = defaultdict(list)
    for row_turns in turns:
        if row_turns.starts:
            groups[index[row_turns.row]].append(row_turns)
    for group in groups.values():
        for own in group:
            siblings = [sibling for sibling in group if sibling is not own]
            ends = [*own.starts[1:], response_mask.shape[-1]]
            for turn, (begin, end) in enumerate(zip(own.starts, ends, strict=True)):
                advantages[own.row, begin:end] = own.to_go[turn] - _baseline(own, siblings, turn)
                returns[own.row, begin:end] = own.to_go[turn]
    return advantages * response_mask, returns * response_mask


class _RowTurns(NamedTuple):
    """The turns of a row."""

    row: int
    #: The sum of all rewards of the row.
    total: float
    #: The position of the first token of each turn.
    starts: list[int]
    #: G(k), the sum of the rewards from the beginning of each turn on.
    to_go: list[float]


def _turns(rewards: torch.Tensor, mask: torch.Tensor) -> list[_RowTurns]:
    """Return the turns of each row. Both arguments have the shape (rows, tokens)."""
    sums_to_end = rewards.double().flip(-1).cumsum(-1).flip(-1)  # the sum from each token on
    begins_turn = mask.bool().clone()
    begins_turn[:, 1:] &= ~mask[:, :-1].bool()
    return [
        _RowTurns(row, float(sums[0]), begins.nonzero().flatten().tolist(), sums[begins].tolist())
        for row, (sums, begins) in enumerate(zip(sums_to_end, begins_turn, strict=True))
    ]


def _baseline(own: _RowTurns, siblings: Sequence[_RowTurns], turn: int) -> float:
    """Return b(k) of a trajectory's turn k, whose number is `turn`."""
    sibling_to_go = [sibling.to_go[turn] for sibling in siblings if len(sibling.to_go) > turn]
    if sibling_to_go:
        return sum(sibling_to_go) / len(sibling_to_go)
    if not siblings:
        return 0.0
    earlier_rewards = own.total - own.to_go[turn]
    return sum(sibling.total for sibling in siblings) / len(siblings) - earlier_rewards


def turn_loo_of_sessions(
    rewards: Sequence[Sequence[torch.Tensor]], masks: Sequence[Sequence[torch.Tensor]], index: Sequence[Any]
) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Return the advantages and the returns of trajectories of several rows.

    `rewards` and `masks` have the rows of each trajectory in order, each of shape (tokens,), and `index` has
    the question of each trajectory. The result has a pair of the same shape for each row of each trajectory.
    """
    results = turn_loo_advantage(_padded(rewards), _padded(masks), index)
    pairs = []
    for session, rows in enumerate(masks):
        # `_padded` has added a token to each row.
        lengths = [len(row) + 1 for row in rows]
        parts = [result[session, : sum(lengths)].split(lengths) for result in results]
        pairs.append([(advantages[:-1], returns[:-1]) for advantages, returns in zip(*parts, strict=True)])
    return pairs


def _padded(sessions: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
    """Return one row per trajectory, of shape (trajectories, tokens): its rows in order, each followed by a
    token that is not generated, so that no turn extends into the next row."""
    joined = [torch.cat([part for row in rows for part in (row, row.new_zeros(1))]) for rows in sessions]
    return torch.nn.utils.rnn.pad_sequence(joined, batch_first=True)


def place_turn_scores(
    row: int, length: int, ends: Sequence[tuple[int, int] | None], turn_scores: Sequence[float], score: float
) -> torch.Tensor:
    """Return the rewards of the tokens of a trajectory's row, of shape (tokens,).

    Each turn's score is on the turn's last generated token, and the rewards of all rows sum to `score`: what
    rounding leaves over is added to the last turn. `row` is the number of the row and `length` the number of
    tokens in its response. `ends` has for each turn the row and the position in the response of its last
    generated token. It is None for a turn without one, whose score is added to that of the turn before it or,
    if there is none, after it. Raises ValueError if there are not as many scores as turns, or if no turn has
    a generated token.
    """
    turn_ends = [end for end in ends if end is not None]
    if len(ends) != len(turn_scores) or not turn_ends:
        raise ValueError(f"{len(turn_scores)} scores for turns that end at {list(ends)}")
    rewards, end = torch.zeros(length, dtype=torch.float32), turn_ends[0]
    residual = [(turn_ends[-1], score - math.fsum(turn_scores))]
    for turn_end, turn_score in [*zip(ends, turn_scores, strict=True), *residual]:
        end = end if turn_end is None else turn_end
        if end[0] == row:
            rewards[end[1]] += turn_score
    return rewards
