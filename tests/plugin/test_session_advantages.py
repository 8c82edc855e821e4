"""Advantages of veRL's own trainer step: the same for every generated token, in one row or in several."""

from __future__ import annotations

import pytest
from verl.trainer.ppo import core_algos

from rag_r1.plugin import sampler, session_trainer
from rag_r1.plugin.session_trainer import SessionTrainerSync
from rag_r1.training.preflight.sessions import EXACT_ESTIMATORS
from tests.plugin.split_sessions import Session, apart, laid_out, make_sessions

GROUPS = {"prompts": 2, "group": 4}


def advantages(patch, sessions: list[Session], split: bool, field: str = "advantages", **algorithm) -> dict:
    """By trajectory and place; in one row with veRL's own trainer."""
    laid = laid_out(patch, sessions, split=split, **GROUPS, **algorithm)
    if algorithm.get("use_kl_in_reward"):
        laid.trainer.kl_ctrl_in_reward = core_algos.FixedKLController(kl_coef=0.1)
    laid.trainer._compute_advantage(laid.batch, {})
    return laid.by_token(field)


@pytest.fixture(params=range(3))
def sessions(request) -> list[Session]:
    drawn = make_sessions(request.param, prompts=5, group=4)
    assert any(len(session.rows) > 1 for session in drawn)
    return drawn


@pytest.mark.parametrize("estimator", [name for name in EXACT_ESTIMATORS if name != "turn_loo"])
def test_rows_change_no_tokens_advantage(monkeypatch, sessions, estimator):
    whole = advantages(monkeypatch, sessions, split=False, adv_estimator=estimator)
    split = advantages(monkeypatch, sessions, split=True, adv_estimator=estimator)
    assert split == pytest.approx(whole, abs=1e-5) and any(whole.values())


APART = [seed for seed in range(200) if all(map(apart, make_sessions(seed, prompts=3, group=4)))]


@pytest.mark.parametrize("seed", APART[:6])
@pytest.mark.parametrize("field", ["advantages", "returns"])
def test_rows_change_no_turns_credit(monkeypatch, seed, field):
    sessions = make_sessions(seed, prompts=3, group=4)
    assert any(len(session.rows) > 1 for session in sessions)
    whole = advantages(monkeypatch, sessions, split=False, field=field, adv_estimator="turn_loo")
    split = advantages(monkeypatch, sessions, split=True, field=field, adv_estimator="turn_loo")
    assert split == pytest.approx(whole, abs=1e-5)


def test_verls_own_trainer_would_take_each_row_for_a_trajectory(monkeypatch):
    sessions = make_sessions(APART[0], prompts=3, group=4)
    whole = advantages(monkeypatch, sessions, split=False, adv_estimator="turn_loo")
    monkeypatch.setattr(session_trainer, "write_turn_advantages", lambda batch: None)
    wrong = advantages(monkeypatch, sessions, split=True, adv_estimator="turn_loo")
    assert max(abs(wrong[place] - whole[place]) for place in whole) > 1e-3


@pytest.mark.parametrize("estimator", ["gae", "reinforce_plus_plus"])
def test_rows_change_no_tokens_return(monkeypatch, sessions, estimator):
    whole = advantages(monkeypatch, sessions, split=False, field="returns", adv_estimator=estimator)
    split = advantages(monkeypatch, sessions, split=True, field="returns", adv_estimator=estimator)
    assert split == pytest.approx(whole, abs=1e-5)
    rewards = {session.key: session.reward for session in sessions}
    assert split == pytest.approx({place: rewards[place[0]] for place in split}, abs=1e-5)


@pytest.mark.parametrize(
    "algorithm",
    [
        {"adv_estimator": "rloo"},
        {"adv_estimator": "reinforce_plus_plus_baseline"},
        {"adv_estimator": "gae", "gamma": 0.9},
        {"adv_estimator": "gae", "lam": 0.9},
        {"adv_estimator": "reinforce_plus_plus", "gamma": 0.9},
        {"adv_estimator": "gae", "use_kl_in_reward": True, "kl_penalty": "kl"},
        {"adv_estimator": "grpo", "use_kl_in_reward": True, "kl_penalty": "kl"},
    ],
    ids=lambda algorithm: "-".join(map(str, algorithm.values())),
)
def test_what_the_preflight_refuses_does_change_them(monkeypatch, sessions, algorithm):
    whole = advantages(monkeypatch, sessions, split=False, **algorithm)
    split = advantages(monkeypatch, sessions, split=True, **algorithm)
    assert split.keys() == whole.keys()
    assert max(abs(split[place] - whole[place]) for place in whole) > 1e-3


def ends_unseen(session: Session) -> bool:
    """Whether nothing is generated in the last row."""
    begin, end = session.rows[-1]
    return not any(session.generated[begin:end])


def test_a_last_row_without_generated_tokens_would_take_the_advantage_of_all_of_them(monkeypatch):
    drawn = [session for seed in range(3) for session in make_sessions(seed, prompts=1, group=4)]
    sessions = [
        Session(f"prompt{i // 4}_{i % 4}", s.ids, s.generated, s.rows, i % 4 / 4, s.numbers)
        for i, s in enumerate(drawn)
    ]
    unseen = {session.key for session in sessions if ends_unseen(session)}
    assert unseen
    right = advantages(monkeypatch, sessions, split=True)
    assert all(value != 0 for value in right.values())
    monkeypatch.setattr(sampler, "rows_to_train", lambda keys, partition_id: list(keys))
    wrong = advantages(monkeypatch, sessions, split=True)
    assert {place[0] for place, value in wrong.items() if value == 0} == unseen


def test_a_reward_on_an_observation_would_be_lost_to_gae(monkeypatch, sessions):
    observed_last = {
        session.key
        for session in sessions
        if len(session.rows) > 1
        and session.reward
        and any(any(session.generated[b:e]) and not session.generated[e - 1] for b, e in session.rows)
    }
    assert observed_last
    monkeypatch.setattr(sampler.sessions, "move_rewards", lambda rewards, mask: list(rewards))
    wrong = advantages(monkeypatch, sessions, split=True, field="returns", adv_estimator="gae")
    rewards = {session.key: session.reward for session in sessions}
    lost = {place[0] for place, value in wrong.items() if abs(value - rewards[place[0]]) > 1e-4}
    assert lost == observed_last


def test_our_trainer_lays_one_row_for_each_trajectory_out_as_verl_does(monkeypatch, sessions):
    verls = laid_out(monkeypatch, sessions, split=False, **GROUPS)
    ours = laid_out(monkeypatch, sessions, split=False, kind=SessionTrainerSync, **GROUPS)
    real = [[key for key in laid.batch.keys if not key.startswith("pad")] for laid in (verls, ours)]
    assert real[0] == real[1] and len(verls.batch) == len(ours.batch)
