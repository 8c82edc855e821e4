"""The advantage estimator `turn_loo`: credit for each turn, with a baseline that leaves its own answer out.

Of a question, several trajectories are played. The advantage of turn k of one of them is

    A(k) = G(k) - b(k)
    G(k) = the sum of its rewards from turn k on (return-to-go)
    b(k) = the mean of the siblings' G(k), over those that have a turn k
           or, if none has: the mean of the siblings' whole rewards, minus its own rewards before turn k
           or, without any sibling: 0

and all tokens of the turn get it. Nothing is divided by a deviation. The siblings are independent of the
trajectory, and its own past is known before turn k, so b(k) does not depend on what is done there, and the
expected gradient is exactly that of the expected reward: the sum over turns, and the mean over trajectories
(the policy gradient theorem; for single turns this is RLOO, arXiv 2402.14740). That fails if the mean over
"all that are alive at turn k" includes the trajectory itself, whose staying alive depends on what it did
(tests/plugin/test_turn_loo.py counts both out on a small process).

A turn is an unbroken run of the response mask in a row; two turns without an observation between them are
one. Its reward stands on its last generated token, where `place_turn_scores` puts it. A row without a
generated token (padding) is nobody's sibling. Of a trajectory whose context is rewritten, the rows follow one
another, and a turn ends with its row (`turn_loo_of_sessions`, which session_trainer.py calls).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from verl.trainer.ppo.core_algos import register_adv_est

NAME = "turn_loo"


@register_adv_est(NAME)
def turn_loo_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[Any],
    config: Any = None,
    **unused: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns advantages and returns, both of the shape of the rewards and the mask (rows, tokens) and 0
    where the mask is. `index`: the question of each row; `config` is part of veRL's signature and unused."""
    advantages = torch.zeros_like(token_level_rewards)
    returns = torch.zeros_like(token_level_rewards)
    sums_to_end = token_level_rewards.double().flip(-1).cumsum(-1).flip(-1)  # the sum from each token on
    begins_turn = response_mask.bool().clone()
    begins_turn[:, 1:] &= ~response_mask[:, :-1].bool()
    starts: list[list[int]] = [[] for _ in sums_to_end]
    to_go: list[list[float]] = [[] for _ in sums_to_end]
    turn_rewards = sums_to_end[begins_turn].tolist()
    for (row, position), reward in zip(begins_turn.nonzero().tolist(), turn_rewards, strict=True):
        starts[row].append(position)
        to_go[row].append(reward)
    totals: list[float] = sums_to_end[:, 0].tolist()
    groups: dict[Any, list[int]] = defaultdict(list)
    for row, turns in enumerate(starts):
        if turns:
            groups[index[row]].append(row)
    for rows in groups.values():
        for row in rows:
            siblings = [sibling for sibling in rows if sibling != row]
            ends = [*starts[row][1:], response_mask.shape[-1]]
            for turn, (begin, end) in enumerate(zip(starts[row], ends, strict=True)):
                own_to_go = to_go[row][turn]
                earlier_sum = totals[row] - own_to_go
                sibling_to_go = [to_go[sibling][turn] for sibling in siblings if len(to_go[sibling]) > turn]
                baseline = _baseline(sibling_to_go, [totals[sibling] for sibling in siblings], earlier_sum)
                advantages[row, begin:end] = own_to_go - baseline
                returns[row, begin:end] = own_to_go
    return advantages * response_mask, returns * response_mask


def _baseline(sibling_to_go: Sequence[float], sibling_totals: Sequence[float], earlier_sum: float) -> float:
    """b(k) of a turn: from the G(k) of the siblings that have turn k, the whole rewards of all siblings, and
    the trajectory's own rewards before the turn."""
    if sibling_to_go:
        return sum(sibling_to_go) / len(sibling_to_go)
    return sum(sibling_totals) / len(sibling_totals) - earlier_sum if sibling_totals else 0.0


def turn_loo_of_sessions(
    rewards: Sequence[Sequence[torch.Tensor]], masks: Sequence[Sequence[torch.Tensor]], index: Sequence[Any]
) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Returns advantages and returns of trajectories of several rows: for each trajectory and each of its
    rows a pair, each of shape (tokens,). `rewards`, `masks`: the rows of each trajectory in order, of that
    shape; `index`: the question of each trajectory."""
    results = turn_loo_advantage(_padded(rewards), _padded(masks), index)
    pairs = []
    for number, rows in enumerate(masks):
        # As in `_padded`: one more for each row.
        lengths = [len(row) + 1 for row in rows]
        parts = [result[number, : sum(lengths)].split(lengths) for result in results]
        pairs.append([(advantages[:-1], returns[:-1]) for advantages, returns in zip(*parts, strict=True)])
    return pairs


def _padded(sessions: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
    """One row for each trajectory, of shape (trajectories, tokens): its rows, with a token of the environment
    after each, which ends its last turn."""
    joined = [torch.cat([part for row in rows for part in (row, row.new_zeros(1))]) for rows in sessions]
    return torch.nn.utils.rnn.pad_sequence(joined, batch_first=True)


def place_turn_scores(
    row: int, length: int, ends: Sequence[tuple[int, int] | None], turn_scores: Sequence[float], score: float
) -> torch.Tensor:
    """Returns the rewards of the tokens of one of a trajectory's rows, of shape (tokens,); those of all its
    rows sum to `score`, and each turn's is on its last generated token. `ends`: the row of that token and its
    position in the response, for each turn; `length`: tokens of the response in this `row`; None for a turn
    without one, whose score goes to the turn before it, or else after it. What rounding leaves over goes to
    the last. Raises ValueError if there are not as many scores as turns, or no token at all."""
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
