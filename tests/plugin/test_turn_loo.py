"""The gradient with `turn_loo` is that of the expected reward, counted out on a process of three turns."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import open_dict
from verl.trainer.ppo.core_algos import compute_rloo_outcome_advantage, get_adv_estimator_fn

from rag_r1.plugin.algorithms.turn_loo import place_turn_scores, turn_loo_advantage, turn_loo_of_sessions
from tests.plugin.scripted_loop import config, play, score

# --- exactness


@dataclass(frozen=True)
class Played:
    """A trajectory: the history before each turn and the action there, and the reward of each turn."""

    actions: tuple[int, ...]
    rewards: tuple[float, ...]

    def choices(self) -> list[tuple[tuple[int, ...], int]]:
        return [(self.actions[:turn], action) for turn, action in enumerate(self.actions)]


def every_trajectory() -> list[Played]:
    """Action 0 ends the episode, 1 and 2 go on; the third turn ends it in any case. Rewards are arbitrary
    and depend on all that was done."""
    found = []
    for length in (1, 2, 3):
        for actions in itertools.product(range(3), repeat=length):
            if all(actions[:-1]) and (length == 3 or actions[-1] == 0):
                rewards = [math.sin(7 * turn + 3 * sum(actions[: turn + 1])) for turn in range(length)]
                found.append(Played(actions, tuple(rewards)))
    return found


PLAYED = every_trajectory()
HISTORIES = sorted({history for played in PLAYED for history, _ in played.choices()})


def policy() -> torch.Tensor:
    """Logits, (histories, actions)."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(len(HISTORIES), 3, generator=generator, dtype=torch.float64).requires_grad_()


def log_probs(logits: torch.Tensor, played: Played) -> list[torch.Tensor]:
    rows = torch.log_softmax(logits, -1)
    return [rows[HISTORIES.index(history), action] for history, action in played.choices()]


def gradients(logits: torch.Tensor) -> list[list[torch.Tensor]]:
    """Of the log-prob of each turn of each trajectory."""
    return [
        [torch.autograd.grad(p, logits, retain_graph=True)[0] for p in log_probs(logits, played)]
        for played in PLAYED
    ]


def batch(groups: list[tuple[int, ...]]):
    """All groups as rows: two generated tokens a turn, an observation after it; the reward on the second."""
    rows = [PLAYED[number] for group in groups for number in group]
    mask = torch.zeros(len(rows), 9, dtype=torch.long)
    rewards = torch.zeros(len(rows), 9, dtype=torch.float64)
    for row, played in enumerate(rows):
        for turn, reward in enumerate(played.rewards):
            mask[row, 3 * turn : 3 * turn + 2] = 1
            rewards[row, 3 * turn + 1] = reward
    index = np.array([number for number, group in enumerate(groups) for _ in group], dtype=object)
    return rewards, mask, index


def by_turn_centred(rewards, mask, index):
    """Naive: minus the mean of all that have the turn, the trajectory itself among them."""
    to_go = rewards.flip(-1).cumsum(-1).flip(-1)
    advantages = torch.zeros_like(rewards)
    for group in set(index.tolist()):
        rows = torch.tensor(index == group)
        for at in (0, 3, 6):
            alive = rows & (mask[:, at] == 1)
            if alive.any():
                advantages[alive, at] = to_go[alive, at] - to_go[alive, at].mean()
    return advantages, to_go


def bias(estimator, size: int, factor: float = 1.0) -> float:
    """The largest difference, over all parameters, between the expected gradient of groups of `size` and the
    gradient of the expected reward."""
    logits = policy()
    chances = torch.stack([sum(log_probs(logits, played)).exp() for played in PLAYED])
    known = chances.tolist()
    assert sum(known) == pytest.approx(1.0)
    expected_reward = sum(p * sum(played.rewards) for p, played in zip(chances, PLAYED, strict=True))
    true = torch.autograd.grad(expected_reward, logits, retain_graph=True)[0]
    of_turns = gradients(logits)
    groups = list(itertools.product(range(len(PLAYED)), repeat=size))
    advantages, _ = estimator(*batch(groups))
    estimate = torch.zeros_like(true)
    for number, group in enumerate(groups):
        chance = math.prod(known[member] for member in group)
        for place, member in enumerate(group):
            for turn, gradient in enumerate(of_turns[member]):
                advantage = float(advantages[number * size + place, 3 * turn])
                estimate += chance * factor * advantage / size * gradient
    return float((estimate - true).abs().max())


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_expected_gradient_is_that_of_the_expected_reward(size):
    assert len(PLAYED) == 15
    assert bias(turn_loo_advantage, size) < 1e-9


def in_rows(rewards, mask, index):
    """The same, with each trajectory in rows of its own cut after any of its turns."""
    cuts = itertools.cycle([(9,), (3, 6), (6, 3), (3, 3, 3)])
    rows = [[part.split(cut) for part in pair] for *pair, cut in zip(rewards, mask, cuts, strict=False)]
    kept = [[i for i, part in enumerate(masks) if any(part)] for _, masks in rows]
    parts = [
        [[row[which][i] for i in keep] for row, keep in zip(rows, kept, strict=True)] for which in (0, 1)
    ]
    advantages = torch.zeros_like(rewards)
    for number, (keep, found) in enumerate(zip(kept, turn_loo_of_sessions(*parts, index=index), strict=True)):
        starts = [0, *itertools.accumulate(len(part) for part in rows[number][1])]
        for i, (row_advantages, _) in zip(keep, found, strict=True):
            advantages[number, starts[i] : starts[i] + len(row_advantages)] = row_advantages
    return advantages, advantages


@pytest.mark.parametrize("size", [1, 2, 3])
def test_it_is_that_with_several_rows_for_a_trajectory_too(size):
    assert bias(in_rows, size) < 1e-9


@pytest.mark.parametrize("size", [2, 3])
def test_centring_by_the_number_of_the_turn_is_biased_whatever_its_scale(size):
    scales = (1.0, size / (size - 1))
    assert min(bias(by_turn_centred, size, scale) for scale in scales) > 0.02


# --- the definition


@st.composite
def groups(draw):
    rows, length = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    mask = torch.tensor(
        draw(
            st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=rows, max_size=rows)
        )
    ).long()
    eighths = st.integers(-8, 8).map(lambda number: number / 8)
    rewards = torch.tensor(
        draw(st.lists(st.lists(eighths, min_size=length, max_size=length), min_size=rows, max_size=rows))
    )
    index = draw(st.lists(st.sampled_from("ab"), min_size=rows, max_size=rows))
    return rewards, mask, np.array(index, dtype=object)


def by_hand(rewards, mask, index) -> torch.Tensor:
    turns = []
    for row in range(len(mask)):
        starts = [at for at in range(mask.shape[1]) if mask[row, at] and not (at and mask[row, at - 1])]
        turns.append([(at, float(rewards[row, at:].sum())) for at in starts])
    advantages = torch.zeros_like(rewards)
    for row in range(len(mask)):
        others = [o for o in range(len(mask)) if o != row and index[o] == index[row] and turns[o]]
        for turn, (at, own) in enumerate(turns[row]):
            alive = [turns[other][turn][1] for other in others if len(turns[other]) > turn]
            if alive:
                baseline = np.mean(alive)
            elif others:
                baseline = np.mean([float(rewards[o].sum()) for o in others]) - float(rewards[row, :at].sum())
            else:
                baseline = 0.0
            while at < mask.shape[1] and mask[row, at]:
                advantages[row, at] = own - baseline
                at += 1
    return advantages


@settings(deadline=None, max_examples=200)
@given(groups())
def test_the_advantage_of_each_token_is_what_the_definition_gives(batch):
    advantages, returns = turn_loo_advantage(*batch)
    assert torch.allclose(advantages, by_hand(*batch), atol=1e-6)
    assert not advantages[batch[1] == 0].any() and not returns[batch[1] == 0].any()
    assert advantages.dtype == returns.dtype == batch[0].dtype


def test_with_one_turn_and_the_reward_at_the_end_it_is_verls_rloo():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 1]])
    rewards = torch.zeros(4, 3)
    for row, value in enumerate((1.0, 0.0, 0.25, 1.0)):
        rewards[row, int(mask[row].sum()) - 1] = value
    index = np.array(["a"] * 4, dtype=object)
    ours, _ = turn_loo_advantage(rewards, mask, index)
    theirs, _ = compute_rloo_outcome_advantage(rewards, mask, index)
    assert torch.allclose(ours, theirs)


def test_padding_is_nobodys_sibling_and_verl_finds_the_estimator_by_its_name():
    mask = torch.tensor([[1, 1], [0, 0]])
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    estimator = get_adv_estimator_fn("turn_loo")
    index = np.array(["a", "a"], dtype=object)
    advantages, _ = estimator(token_level_rewards=rewards, response_mask=mask, index=index, config=None)
    assert advantages.tolist() == [[1.0, 1.0], [0.0, 0.0]]


# --- how the scores of the turns get there


def test_scores_stand_on_the_last_token_of_their_turns_and_sum_to_the_total():
    placed = place_turn_scores(0, 6, [(0, 1), None, (0, 4)], [0.25, 0.5, -1.0], -0.2)
    assert placed[[0, 2, 3, 5]].tolist() == [0.0] * 4 and float(placed[1]) == 0.75
    assert float(placed.double().sum()) == pytest.approx(-0.2, abs=1e-7)
    assert place_turn_scores(0, 2, [None, (0, 1)], [0.5, 0.5], 1.0).tolist() == [0.0, 1.0]
    for ends, scores in (([(0, 1)], [0.5, 0.5]), ([None], [1.0])):
        with pytest.raises(ValueError, match="scores for turns that end at"):
            place_turn_scores(0, 2, ends, scores, 1.0)


def test_the_rows_of_a_trajectory_have_the_scores_of_their_turns():
    ends, scores = [(0, 1), None, (1, 0), (1, 3)], [0.25, 0.5, 1.0, -0.5]
    rows = [place_turn_scores(row, length, ends, scores, 1.5) for row, length in enumerate((3, 4))]
    assert [row.tolist() for row in rows] == [[0.0, 0.75, 0.0], [1.0, 0.0, 0.0, -0.25]]


def per_turn(trajectory, golds):
    return [0.125 * len(turn.queries) for turn in trajectory.turns]


def stored(tokenizer, estimator: str, texts: list[str]):
    """A row as veRL's worker stores it, and its output."""
    reward = [{"term": "em", "weight": 1.0}, {"term": f"{__name__}:per_turn", "weight": 1.0}]
    cfg = config(reward=reward)
    with open_dict(cfg):
        cfg.algorithm = {"adv_estimator": estimator}
    output, _ = play(tokenizer, texts, cfg)
    result = score(tokenizer, output, cfg)
    output.reward_score = result["reward_score"]
    output.extra_fields["reward_extra_info"] = result["reward_extra_info"]
    return output.as_dict(), output


def test_the_agent_loop_puts_each_turns_score_onto_its_last_generated_token(tokenizer):
    texts = ["<search> a, b </search>", "<answer> x </answer>"]
    row, output = stored(tokenizer, "turn_loo", texts)
    mask = output.response_mask
    last = [at for at in range(len(mask)) if mask[at] and (at + 1 == len(mask) or not mask[at + 1])]
    assert len(last) == 2
    assert row["rm_scores"].nonzero().flatten().tolist() == last
    assert row["rm_scores"][last].tolist() == [0.25, 1.0]
    fields = row["extra_fields"]
    assert "turn_ends" not in fields and "turn_scores" not in fields["reward_extra_info"]
    left = {name: value for name, value in fields["reward_extra_info"].items() if name != "source"}
    assert all(isinstance(value, float | None) for value in left.values())


def test_with_every_other_estimator_the_total_is_on_the_last_token_as_before(tokenizer):
    row, output = stored(tokenizer, "grpo", ["<search> a, b </search>", "<answer> x </answer>"])
    assert row["rm_scores"].nonzero().flatten().tolist() == [len(output.response_ids) - 1]
    assert float(row["rm_scores"][-1]) == 1.25
    assert "turn_scores" not in row["extra_fields"]["reward_extra_info"]


def test_a_trajectory_that_was_lost_has_no_scores_by_turn(tokenizer):
    row, output = stored(tokenizer, "turn_loo", ["<search> fail </search>"])
    assert not any(output.response_mask) and not row["rm_scores"].any()
