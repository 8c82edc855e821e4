"""The forecast: which steps it has a time for, and which of its numbers are limits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from rag_r1.own.forecast import _START_S, _training_seconds, forecast_of, max_seeds
from rag_r1.own.plan_file import read_plan
from rag_r1.own.sizes import MeasuredTimes
from rag_r1.runs.response_cache import Usage

TIMES = MeasuredTimes(sample_s=1.0, question_s=1.0, step_s=10.0)


def artifacts(*words: str, **trainer) -> SimpleNamespace:
    """What the forecast reads of a run."""
    data = {"train_batch_size": 8}
    config = OmegaConf.create({"trainer": {"total_training_steps": None, **trainer}, "data": data})
    plan = read_plan(None, {"teacher": {"model": "scripted"}}, words)
    return SimpleNamespace(plan=plan, episodes=SimpleNamespace(config=config, max_turns=2))


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ((), {"sft", "filter", "grpo"}),
        (("filter.skip=true",), {"sft", "grpo"}),
        (("grpo.skip=true",), {"sft"}),
        (("sft.skip=true",), {"filter", "grpo"}),
    ],
)
def test_only_steps_that_will_be_taken_have_a_time(words, steps):
    made = artifacts("evaluation.skip=true", *words, total_epochs=1)
    assert set(_training_seconds(made, 16, 4, TIMES)) == steps


@pytest.mark.parametrize(
    ("trainer", "steps"),
    [({"total_training_steps": 7, "total_epochs": 2}, 7), ({"total_epochs": 2}, 6)],
)
def test_without_a_number_of_steps_there_are_those_of_the_epochs(trainer, steps):
    assert _training_seconds(artifacts(**trainer), 25, 4, TIMES)["grpo"] == _START_S + 10.0 * steps


def test_a_bridge_is_forecast_with_its_longest_chain():
    spec, pool = SimpleNamespace(kinds=("bridge",), per_kind=2), SimpleNamespace(passages=tuple("abcde"))
    assert [len(seed.passages) for seed in max_seeds(spec, pool)] == [4, 4]


@pytest.mark.parametrize(
    ("rows", "words"), [({"train": 5, "test": 2}, "at most 15 requests"), (None, "about 15 requests")]
)
def test_the_requests_of_traces_are_a_limit_once_the_training_questions_are_known(monkeypatch, rows, words):
    from rag_r1.own import forecast

    spec = SimpleNamespace(most_passages=9)
    monkeypatch.setattr(forecast, "questions_spec", lambda made: spec)
    monkeypatch.setattr(forecast, "_pool", lambda made, most: SimpleNamespace(n_read=9))
    monkeypatch.setattr(forecast, "max_seeds", lambda spec, pool: [None] * 6)
    monkeypatch.setattr(forecast, "forecast", lambda *unused: (Usage(), Usage()))
    monkeypatch.setattr(forecast, "forecast_lines", lambda *unused: [])
    facts = {} if rows is None else {"rows": rows}
    folder = SimpleNamespace(facts=lambda step: facts, seconds=lambda step: None)
    [line] = [line for line in forecast_of(artifacts(), folder).lines if "traces of" in line]
    assert words in line
