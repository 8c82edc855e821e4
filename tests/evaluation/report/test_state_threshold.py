"""`rag-r1 eval sigma`: which threshold is proposed from which states."""

from __future__ import annotations

import json
import sys
from itertools import pairwise

import numpy as np
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import Trajectory, Turn
from rag_r1.agent.records import read_records
from rag_r1.data.rows import write_rows
from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import demo_protocol, make_questions, make_world, to_row
from rag_r1.evaluation import command
from rag_r1.evaluation.report.state_threshold import (
    AnswerStates,
    best_balanced,
    quantile_threshold,
    roc_area,
    states_of,
    thresholds_of,
)
from rag_r1.io.errors import DataError
from tests.evaluation.command_words import PROMPT, command_words
from tests.evaluation.finished_runs import write_run
from tests.fakes.reading_policy import ReadingPolicy


def record(state: float | None, em: float | None = 1.0, answer: str | None = "x") -> dict:
    """An episode with an early answer that became a thought, and this state at its last turn."""
    turns = [Turn("", "think", state=900.0), Turn("", "answer", state=state)]
    return Trajectory("t", "?", "agentic_rag_en", turns, answer=answer, rewards={"em": em}).to_dict()


def states(right: list[float], wrong: list[float]) -> AnswerStates:
    return AnswerStates(np.sort(right), np.sort(wrong))


def test_the_state_is_that_of_the_answer_and_what_has_none_is_counted():
    records = [record(3.0), record(1.0, 0.0), record(2.0), record(None), record(4.0, answer=None)]
    answers = states_of([*records, record(5.0, None), record(float("inf"))])
    assert (answers.right.tolist(), answers.wrong.tolist()) == ([2.0, 3.0], [1.0])
    assert sorted(answers.excluded.values()) == [1, 1, 1, 1]
    assert states_of([record(1.0, 0.6)], right_from=0.5).right.tolist() == [1.0]
    with pytest.raises(DataError, match="the record 't' is no trajectory"):
        states_of([record(1.0, "0.6")])


def test_a_reward_that_is_not_a_number_does_not_make_an_answer_wrong():
    answers = states_of([record(1.0, float("nan"))])
    assert not len(answers.wrong) and answers.excluded == {"without a value of 'em'": 1}


def test_the_lowest_threshold_that_accepts_a_share_and_the_one_of_best_balanced_accuracy():
    thresholds = thresholds_of(states([1.0, 2.0, 3.0, 10.0], [2.5, 20.0, 30.0]))
    quantile = quantile_threshold(thresholds, 0.75)
    assert (quantile.sigma, quantile.right_accepted) == (6.5, 0.75)
    assert quantile.wrong_accepted == pytest.approx(1 / 3)
    balanced = best_balanced(thresholds)
    assert (balanced.sigma, balanced.right_accepted) == (15.0, 1.0)
    assert balanced.balanced_accuracy == pytest.approx(5 / 6)
    assert quantile_threshold(thresholds, 1.0).sigma == 15.0


def test_the_area_is_one_for_separate_states_and_one_half_for_equal_ones():
    assert roc_area(states([1.0, 2.0], [3.0, 4.0])) == 1.0
    assert roc_area(states([3.0, 4.0], [1.0, 2.0])) == 0.0
    assert roc_area(states([1.0, 1.0], [1.0])) == 0.5


VALUES = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=30)


@given(VALUES, VALUES, st.floats(0.05, 1.0))
def test_a_threshold_accepts_what_it_says_as_the_agent_accepts(right, wrong, share):
    thresholds = thresholds_of(states(right, wrong))
    assert all(first.sigma <= second.sigma for first, second in pairwise(thresholds))
    for threshold in (quantile_threshold(thresholds, share), best_balanced(thresholds)):
        sigma = threshold.sigma
        assert sigma > 0
        assert threshold.right_accepted == sum(not state >= sigma for state in right) / len(right)
        assert threshold.wrong_accepted == sum(not state >= sigma for state in wrong) / len(wrong)
    assert quantile_threshold(thresholds, share).right_accepted >= share - 1e-9
    assert best_balanced(thresholds).balanced_accuracy >= 0.5


def test_the_command_reads_a_run_and_prints_the_proposals(tmp_path, capsys):
    records = [record(float(i)) for i in range(1, 61)] + [record(50.0 + i, 0.0) for i in range(60)]
    write_run(tmp_path / "run" / "trajectories", [*records, record(None)])
    write_run(tmp_path / "run" / "journal", [{"no": "trajectory"}])
    assert command.main(["sigma", str(tmp_path / "run"), "--accept", "0.5"]) == 0
    printed = capsys.readouterr().out
    assert "| right | 60 | 30.50 | 3.95 |" in printed
    assert "| 50% of the right answers | 30.500 | 50.0% | 0.0% |" in printed
    assert "left out: 1 records without a state" in printed and "fewer than" not in printed


def test_a_state_that_tells_nothing_and_few_answers_are_said(tmp_path, capsys):
    records = [record(2.0), record(1.0, 0.0), record(3.0, 0.0)]
    assert command.main(["sigma", str(write_run(tmp_path / "three", records))]) == 0
    printed = capsys.readouterr().out
    assert "does not tell right answers from wrong ones" in printed and "fewer than 50 answers" in printed
    assert command.main(["sigma", str(write_run(tmp_path / "one", records[:1]))]) == 0
    assert "no max_state is proposed" in capsys.readouterr().out
    assert command.main(["sigma", str(tmp_path / "one"), "--term", "f1", "--check-only"]) == 1
    assert "--term f1: the rewards of" in capsys.readouterr().err
    stateless = str(write_run(tmp_path / "stateless", [record(None)] * 3))
    assert command.main(["sigma", stateless, "--check-only"]) == 1
    message = capsys.readouterr().err
    assert "no answer has a state (3 without a state" in message
    assert "rag_r1.agent.max_state=1000000" in message and str(tmp_path / "stateless") in message
    assert command.main(["sigma", str(tmp_path / "none")]) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err


class WithLogProbs(ReadingPolicy):
    """Each token has the log-prob -0.5, if log-probs are asked for."""

    def _answered(self, body: dict, text: str) -> web.Response:
        answer = json.loads(super()._answered(body, text).body)
        if body.get("logprobs") is not None:
            count = len(answer["choices"][0]["token_ids"])
            answer["choices"][0]["logprobs"] = {"token_logprobs": [-0.5] * count}
        return web.json_response(answer)


@pytest.mark.slow
def test_an_evaluation_with_a_high_max_state_records_the_states_of_its_tokens(
    sq_tokenizer, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # no pictures: they take the longest
    small = make_world(3, "train", people=20, places=10)
    questions = make_questions(small, 4, 3)
    rows = [to_row(question, i, "test", demo_protocol("rag_r1_sq")) for i, question in enumerate(questions)]
    write_rows(tmp_path / "q.parquet", rows)
    with WithLogProbs.of(sq_tokenizer, questions, small.passages) as policy:
        flags = {
            "data": tmp_path / "q.parquet",
            "base_url": policy.url,
            "model": "m",
            "tokenizer": policy_path("rag_r1_sq"),
            "retriever_url": policy.url,
            "protocol": "rag_r1_sq",
            "prompt": PROMPT,
        }
        key = "rag_r1.agent.max_state=1000000"
        assert command.main(command_words(key, **flags, out=tmp_path / "run")) == 0
        assert command.main(command_words(key, **flags, out=tmp_path / "chat", engine="chat")) == 1
    assert "max_state needs the log-probs" in capsys.readouterr().err
    for played in read_records(tmp_path / "run" / "trajectories"):
        assert played["turns"][-1]["state"] == pytest.approx(0.5 * played["generated_tokens"])
    assert command.main(["sigma", str(tmp_path / "run")]) == 0
    assert "| right | 4 |" in capsys.readouterr().out
