"""veRL's own losses over mini-batches of whole trajectories: what rows change, and what they must not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.utils import tensordict_utils as tu
from verl.workers.config import CriticConfig, FSDPActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss, value_loss

from rag_r1.plugin.algorithms.llds import LLDSConfig
from rag_r1.plugin.session_trainer import SessionTrainerSync
from rag_r1.training.preflight.sessions import EXACT_AGGREGATIONS, EXACT_LOSSES
from tests.plugin.split_sessions import Laid, Session, apart, laid_out, make_sessions

GROUPS = {"prompts": 1, "group": 4}
#: Loss of each update, and all gradients as one vector.
Updates = list[tuple[torch.Tensor, torch.Tensor]]


def actor(aggregation: str = "token-mean", loss: str = "vanilla") -> FSDPActorConfig:
    settings = LLDSConfig if loss == "llds" else PolicyLossConfig
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        use_dynamic_bsz=True,
        loss_agg_mode=aggregation,
        policy_loss=settings(loss_mode=loss, dro_beta=0.1),
        use_kl_loss=True,
        kl_loss_coef=0.5,
        entropy_coeff=0.3,
    )


def critic(aggregation: str = "token-mean") -> CriticConfig:
    return CriticConfig(
        strategy="fsdp2", use_dynamic_bsz=True, loss_agg_mode=aggregation, cliprange_value=0.2
    )


class Outputs:
    """What a model says of every token of every trajectory, as variables; equal for equal seeds."""

    def __init__(self, sessions: list[Session]):
        generator = torch.Generator().manual_seed(0)
        self.values = {
            (session.key, name): (torch.randn(len(session.ids), generator=generator) - 2).requires_grad_()
            for session in sessions
            for name in ("log_probs", "entropy", "values")
        }

    def of(self, rows) -> dict[str, torch.Tensor]:
        """veRL's model output of a micro-batch: the number of a token stands at the place before it."""
        results = {}
        for name in ("log_probs", "entropy", "values"):
            flat = []
            for i, (key, ids) in enumerate(
                zip(tu.get(rows, "session"), rows["input_ids"].unbind(), strict=True)
            ):
                real = bool(rows["real"][i])
                numbers = self.values[key, name][1 : len(ids)] if real else torch.zeros(len(ids) - 1)
                flat += [numbers, torch.zeros(1)]
            results[name] = torch.cat(flat)
        return results


def updates(laid: Laid, outputs: Outputs, loss, config, micro: int = 3) -> Updates:
    """Loss and gradients of each update. As in `forward_backward_batch` of veRL's FSDP engine, each rank adds
    its micro-batches up, tokens are counted over all ranks, and FSDP takes the mean of the gradients."""
    done = []
    variables = list(outputs.values.values())
    padding = {
        key for key, tag in zip(laid.batch.keys, laid.batch.tags, strict=True) if tag.get("is_padding")
    }
    for ranks in laid.mini_batches():
        tokens = sum(int(mask.sum()) for keys in ranks for mask in laid.rows(keys)["loss_mask"].unbind())
        total = torch.zeros(())
        for keys in ranks:
            for part in (keys[i : i + micro] for i in range(0, len(keys), micro)):
                rows = laid.rows(part)
                rows["real"] = torch.tensor([key not in padding for key in part])
                of = outputs.of(rows)
                tu.assign_non_tensor(
                    rows, dp_size=len(ranks), batch_num_tokens=tokens, global_batch_size=laid.rows_of_each
                )
                total = total + loss(config=config, model_output=of, data=rows)[0] / len(ranks)
        gradients = torch.autograd.grad(total, variables, allow_unused=True, materialize_grads=True)
        done.append((total.detach(), torch.cat(gradients)))
    return done


def both(patch, sessions, loss, config, ranks: int = 1, kind=None) -> list[Updates]:
    """The updates with one row for each trajectory, and with several."""
    outputs, results = Outputs(sessions), []
    for split in (False, True):
        laid = laid_out(patch, sessions, split=split, ranks=ranks, kind=kind, **GROUPS)
        laid.trainer._compute_advantage(laid.batch, {})
        results.append(updates(laid, outputs, loss, config))
    return results


def difference(whole: Updates, split: Updates) -> float:
    """The largest difference of a gradient, and of a loss in units of the loss, of any update."""
    assert len(whole) == len(split) > 1
    losses = [abs(a - b) / max(1.0, abs(a)) for (a, _), (b, _) in zip(whole, split, strict=True)]
    gradients = [(a - b).abs().max() for (_, a), (_, b) in zip(whole, split, strict=True)]
    assert all(gradient.any() for _, gradient in whole)
    return float(max(*losses, *gradients))


@pytest.fixture
def sessions() -> list[Session]:
    return make_sessions(0, prompts=3, group=4)


@pytest.mark.parametrize(
    ("loss", "aggregation", "ranks"),
    [
        *((loss, "token-mean", 2) for loss in EXACT_LOSSES),
        *(("vanilla", aggregation, 1) for aggregation in EXACT_AGGREGATIONS),
    ],
)
def test_rows_change_neither_actor_nor_kl_loss_nor_entropy_nor_their_gradients(
    monkeypatch, sessions, loss, aggregation, ranks
):
    config = actor(aggregation, loss)
    kind = SessionTrainerSync if ranks > 1 else None  # veRL's own deals other trajectories to two ranks
    assert difference(*both(monkeypatch, sessions, ppo_loss, config, ranks, kind)) < 1e-5


APART = [seed for seed in range(60) if all(map(apart, make_sessions(seed, prompts=3, group=4)))]


@pytest.mark.slow
@pytest.mark.parametrize("seed", APART[:6])
def test_rows_do_not_change_the_penalty_of_a_turn_whose_likelihood_fell(monkeypatch, seed):
    sessions = make_sessions(seed, prompts=3, group=4)
    assert any(len(session.rows) > 1 for session in sessions)
    whole, split = both(monkeypatch, sessions, ppo_loss, actor(loss="llds"))
    assert difference(whole, split) < 1e-5
    plain, _ = both(monkeypatch, sessions, ppo_loss, actor())
    assert max(float((a - b).abs().max()) for (_, a), (_, b) in zip(whole, plain, strict=True)) > 1e-3


@pytest.mark.parametrize("aggregation", EXACT_AGGREGATIONS)
def test_rows_do_not_change_the_value_loss_nor_its_gradient(monkeypatch, sessions, aggregation):
    patch, config = monkeypatch, critic(aggregation)
    outputs, results = Outputs(sessions), []
    for split in (False, True):
        laid = laid_out(patch, sessions, split=split, adv_estimator="gae", **GROUPS)
        laid.trainer._compute_advantage(laid.batch, {})
        results.append(updates(laid, outputs, value_loss, config))
    assert difference(*results) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    "aggregation", ["seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
)
def test_the_aggregations_that_the_preflight_refuses_do_change(monkeypatch, sessions, aggregation):
    assert difference(*both(monkeypatch, sessions, ppo_loss, actor(aggregation))) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["gspo", "geo_mean", "sapo", "kl_cov"])
def test_the_losses_that_the_preflight_refuses_do_change(monkeypatch, sessions, loss):
    assert difference(*both(monkeypatch, sessions, ppo_loss, actor(loss=loss))) > 1e-4


def test_padding_rows_weigh_nothing_in_any_loss(monkeypatch, sessions):
    laid = laid_out(monkeypatch, sessions, split=True, ranks=2, adv_estimator="gae", **GROUPS)
    laid.trainer._compute_advantage(laid.batch, {})
    padding = [key for key in laid.batch.keys if key.startswith("pad")]
    assert padding and all(not laid.store.rows["train"][key]["response_mask"].any() for key in padding)
    outputs = Outputs(sessions)
    results = {loss: updates(laid, outputs, loss, config) for loss, config in LOSSES}
    cut = laid.mini_batches()
    without = [[[key for key in keys if key not in padding] for keys in ranks] for ranks in cut]
    monkeypatch.setattr(Laid, "mini_batches", lambda self: without)
    for loss, config in LOSSES:
        assert difference(results[loss], updates(laid, outputs, loss, config)) < 1e-6


LOSSES = [(ppo_loss, actor()), (value_loss, critic())]


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.integers(0, 999), st.integers(1, 7), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))
def test_a_step_has_as_many_updates_as_with_one_row_for_each_trajectory(seed, count, prompts, group, ranks):
    """Counted as veRL counts them; where ranks do not divide its mini-batch, veRL refuses that one."""
    sessions = make_sessions(seed, prompts=count, group=group)
    with pytest.MonkeyPatch.context() as patch:
        sizes = {"prompts": prompts, "group": group}
        split = laid_out(patch, sessions, split=True, ranks=ranks, **sizes)
        whole = laid_out(
            patch, sessions, split=False, ranks=ranks if prompts * group % ranks == 0 else 1, **sizes
        )
    assert len(split.mini_batches()) == len(whole.mini_batches())
    for ranks_rows in split.mini_batches():
        assert len({len(keys) for keys in ranks_rows}) == 1
        assert any(not key.startswith("pad") for keys in ranks_rows for key in keys)
