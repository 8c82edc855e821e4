"""LLDS is the formula of its authors, turn by turn; its gradient is on fallen tokens of right turns only."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

from rag_r1.plugin.algorithms.llds import LLDSConfig, fallen_turns, llds_loss

MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def actor(coef: float = 0.2, mode: str = "token-mean", **more) -> FSDPActorConfig:
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        use_dynamic_bsz=True,
        loss_agg_mode=mode,
        policy_loss=LLDSConfig(llds_coef=coef),
        **more,
    )


def loss_of(name: str, config: FSDPActorConfig, old, new, advantages, mask, weights=None):
    return get_policy_loss_fn(name)(
        old_log_prob=old,
        log_prob=new,
        advantages=advantages,
        response_mask=mask,
        loss_agg_mode=config.loss_agg_mode,
        config=config,
        rollout_is_weights=weights,
    )


def by_hand(old, new, advantages, mask) -> tuple[torch.Tensor, int, int]:
    """Penalties, turns and fallen turns, token by token as the definition says."""
    penalties, right, fallen = torch.zeros(new.shape), 0, 0
    for row in range(new.shape[0]):
        run: list[int] = []
        for at in [*range(new.shape[1]), None]:
            if at is not None and mask[row, at] and advantages[row, at] >= 0:
                run.append(at)
                continue
            if run:
                right += 1
                if sum(float((old - new).detach()[row, t]) for t in run) > 0:
                    fallen += 1
                    for t in run:
                        penalties[row, t] = max(0.0, float((old - new).detach()[row, t]))
            run = []
    return penalties, right, fallen


@st.composite
def batches(draw):
    """Rows with padding. Numbers are sixteenths, whose sums are exact, so that ties are ties."""
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    size = rows * length

    def tensor(numbers):
        values = draw(st.lists(numbers, min_size=size, max_size=size))
        return torch.tensor(values).view(rows, length)

    sixteenths = st.integers(-48, 0).map(lambda number: number / 16)
    mask = tensor(st.booleans())
    for row in range(rows):
        mask[row, length - draw(st.integers(0, length)) :] = False  # padding on the right
    return tensor(sixteenths), tensor(sixteenths), tensor(st.sampled_from([-1.0, 0.0, 0.5])), mask


@settings(deadline=None, max_examples=200)
@given(batches(), st.sampled_from(MODES), st.sampled_from([0.0, 0.2, 1.0]))
def test_the_loss_is_the_clipped_loss_and_the_penalty_that_the_definition_gives(batch, mode, coef):
    old, new, advantages, mask = batch
    config = actor(coef, mode)
    if mask.any():
        config.global_batch_info.update(dp_size=2, batch_num_tokens=int(mask.sum()) * 2, global_batch_size=8)
    penalties, right, fallen = by_hand(old, new, advantages, mask)
    got, turns, fell = fallen_turns(old, new, mask & (advantages >= 0))
    assert torch.equal(got, penalties) and (turns, fell) == (right, fallen)
    if not mask.any():
        return
    loss, metrics = loss_of("llds", config, old, new, advantages, mask)
    vanilla, of_vanilla = loss_of("vanilla", config, old, new, advantages, mask)
    added = agg_loss(penalties, mask, mode, **config.global_batch_info)
    assert float(loss) == pytest.approx(float(vanilla + coef * added), abs=1e-6)
    assert metrics["actor/llds_right_turns"] == right and metrics["actor/llds_fallen_turns"] == fallen
    assert metrics["actor/llds_fallen_share"] == (fallen / right if right else 0.0)
    assert {key: metrics[key] for key in of_vanilla} == of_vanilla


@settings(deadline=None, max_examples=100)
@given(batches(), st.data())
def test_rows_and_micro_batches_make_no_difference(batch, data):
    """A turn never leaves its row: penalties of rows by themselves are those of all together."""
    old, new, advantages, mask = batch
    keep = mask & (advantages >= 0)
    together, right, fallen = fallen_turns(old, new, keep)
    order = data.draw(st.permutations(range(len(old))))
    parts = [fallen_turns(old[[row]], new[[row]], keep[[row]]) for row in order]
    assert torch.equal(torch.cat([part[0] for part in parts]), together[list(order)])
    assert (sum(part[1] for part in parts), sum(part[2] for part in parts)) == (right, fallen)


@settings(deadline=None, max_examples=100)
@given(batches())
def test_the_gradient_of_the_penalty_is_minus_one_on_fallen_tokens_and_nowhere_else(batch):
    old, new, advantages, mask = batch
    old.requires_grad_()
    new.requires_grad_()
    penalties, _, _ = fallen_turns(old, new, mask & (advantages >= 0))
    gradient, of_old = torch.autograd.grad(
        penalties.sum(), (new, old), allow_unused=True, materialize_grads=True
    )
    expected, _, _ = by_hand(old, new, advantages, mask)
    assert torch.equal(gradient, -(expected > 0).float())
    assert not of_old.any(), "the old policy is a constant"


def example(seed: int = 0, rows: int = 3, length: int = 9):
    """Doubles away from every kink; the last row is padding."""
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(rows, length, generator=generator, dtype=torch.float64) - 2
    new = old + 0.1 * torch.randn(rows, length, generator=generator, dtype=torch.float64)
    advantages = torch.tensor([[1.0], [-0.5], [0.0]], dtype=torch.float64).expand(rows, length)
    mask = torch.rand(rows, length, generator=generator) < 0.7
    mask[-1] = False
    return old, new, advantages, mask


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_is_that_of_finite_differences(mode, weighted):
    old, new, advantages, mask = example()
    weights = torch.full_like(old, 0.5) if weighted else None
    config = actor(0.7, mode)
    new.requires_grad_()

    def loss(values: torch.Tensor) -> torch.Tensor:
        return loss_of("llds", config, old, values, advantages, mask, weights)[0]

    assert torch.autograd.gradcheck(loss, (new,), eps=1e-7, atol=1e-5)
    with_penalty = torch.autograd.grad(loss(new), new)[0]
    config = actor(0.0, mode)
    assert not torch.equal(with_penalty, torch.autograd.grad(loss(new), new)[0])


def test_a_step_against_the_gradient_raises_what_had_fallen_and_touches_no_wrong_answer():
    old, new, advantages, mask = example()
    penalties, _, _ = fallen_turns(old, new, mask & (advantages >= 0))
    assert penalties[0].any() and not penalties[1:].any()
    without, with_it = (
        torch.autograd.grad(loss_of("llds", actor(coef), old, leaf, advantages, mask)[0], leaf)[0]
        for coef in (0.0, 1.0)
        for leaf in [new.clone().requires_grad_()]
    )
    assert torch.equal((with_it - without) < 0, penalties > 0)
    assert torch.equal((with_it - without) != 0, penalties > 0)


def test_numbers_of_padding_do_not_matter_even_if_they_are_none():
    old, new, advantages, mask = example()
    spoilt_old, spoilt = old.clone(), new.clone()
    spoilt_old[~mask], spoilt[~mask] = -torch.inf, torch.nan
    spoilt.requires_grad_()
    keep = mask & (advantages >= 0)
    penalties, right, fallen = fallen_turns(spoilt_old, spoilt, keep)
    expected, *counts = fallen_turns(old, new, keep)
    assert torch.equal(penalties, expected) and [right, fallen] == counts
    assert torch.autograd.grad(penalties.sum(), spoilt)[0].isfinite().all()


def test_where_no_answer_is_right_nothing_is_added():
    old, new, advantages, mask = example()
    advantages = torch.full_like(advantages, -1.0)
    loss, metrics = loss_of("llds", actor(5.0), old, new, advantages, mask)
    assert loss == loss_of("vanilla", actor(5.0), old, new, advantages, mask)[0]
    assert metrics["actor/llds_fallen_share"] == metrics["actor/llds_right_turns"] == 0.0


def test_a_policy_that_has_not_moved_pays_nothing():
    old, _, advantages, mask = example()
    loss, metrics = loss_of("llds", actor(5.0), old, old.clone(), advantages, mask)
    assert loss == loss_of("vanilla", actor(5.0), old, old.clone(), advantages, mask)[0]
    assert metrics["actor/llds_fallen_turns"] == 0.0 < metrics["actor/llds_right_turns"]


@pytest.mark.parametrize("coef", [-0.1, float("nan"), float("inf"), "much", True, None])
def test_a_coefficient_that_is_none_is_refused_by_its_key(coef):
    with pytest.raises(ValueError, match=r"policy_loss\.llds_coef is .*must be a number of at least 0"):
        LLDSConfig(llds_coef=coef)


def test_without_its_own_settings_the_loss_names_them():
    config = FSDPActorConfig(
        strategy="fsdp2", rollout_n=1, use_dynamic_bsz=True, policy_loss=PolicyLossConfig(loss_mode="llds")
    )
    with pytest.raises(ValueError, match="use preset=llds, or set .*policy_loss._target_"):
        loss_of("llds", config, *example())


def test_settings_survive_the_way_to_a_worker():
    config = pickle.loads(pickle.dumps(actor(0.3)))
    assert isinstance(config.policy_loss, LLDSConfig) and config.policy_loss.llds_coef == 0.3
    assert pickle.loads(pickle.dumps(llds_loss)) is llds_loss
    assert LLDSConfig().get("loss_mode") == "llds" and LLDSConfig().llds_coef == 0.2


def nested(*rows: list[float] | list[int]) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def test_verls_worker_calls_it_by_its_name_and_logs_its_metrics():
    data = tu.get_tensordict(
        {
            "input_ids": nested([5, 6, 7, 8], [5, 6, 7]),
            "prompts": nested([5], [5]),
            "responses": nested([6, 7, 8], [6, 7]),
            "attention_mask": nested([1, 1, 1, 1], [1, 1, 1]),
            "response_mask": nested([1, 0, 1], [1, 1]),
            "old_log_probs": nested([-1.0, -1.0, -1.0], [-1.0, -1.0]),
            "advantages": nested([1.0, 1.0, 1.0], [-1.0, -1.0]),
        }
    )
    tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=4, global_batch_size=2)
    output = {"log_probs": nested([-1.5, -1.0, -0.5, 0.0], [-2.0, -2.0, 0.0])}
    loss, metrics = ppo_loss(actor(2.0), output, data)
    plain, _ = ppo_loss(actor(0.0), output, data)
    # One token of the first turn fell by half a nat; the second turn rose, the second answer is wrong.
    assert float(loss - plain) == pytest.approx(2.0 * 0.5 / 4)
    assert metrics["actor/llds_fallen_share"].aggregate() == 0.5
    assert metrics["actor/llds_right_turns"].aggregate() == 2.0
