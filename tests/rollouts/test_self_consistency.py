"""Paths in an evaluation: each has a seed of its own; one that failed is played again with the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rag_r1.agent.records import trajectory_of
from rag_r1.config.schema import RagR1Config
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.rewards import RewardSum
from rag_r1.rollouts.arguments import RolloutArguments
from rag_r1.rollouts.requests import make_request
from rag_r1.rollouts.runner import EpisodeRunner
from rag_r1.rollouts.session import prepare
from rag_r1.runs.errors import RunError
from tests.evaluation.scripted_runs import (
    FAILS,
    RIGHT,
    SQ,
    WRONG,
    ScriptedEngine,
    folder_at,
    row_of,
    setup_of,
)
from tests.fakes import virtual_time


def play(path, fates, tries=3):
    """Outcome, record and seeds of one start, in which the paths end as `fates` say."""
    seeds = []

    def make(ask):
        seeds.append(ask.seed)
        return ScriptedEngine(ask, fates[len(seeds) - 1], lambda ask, turn: float(len(fates) - len(seeds)))

    async def main():
        with folder_at(path) as folder:
            setup = setup_of()
            setup = replace(setup, budget=replace(setup.budget, paths=len(fates)))
            reward = RewardSum.from_config([{"term": "em"}])
            runner = EpisodeRunner(setup, make, reward, folder, in_flight=4, tries=tries)
            outcome = await runner.play(make_request(row_of("a"), SQ, seed=7))
            return outcome, next(iter(folder.records(["a#0"])))

    return *virtual_time.run(main()), seeds


def test_the_vote_is_judged_and_every_path_has_its_own_seed(tmp_path):
    outcome, record, seeds = play(tmp_path, [WRONG, RIGHT, RIGHT])
    assert outcome.right is True and (record["answer"], record["path"]) == ("Rome", 1)
    assert [path["answer"] for path in trajectory_of(record).paths] == ["Paris", "Rome", "Rome"]
    assert len(set(seeds)) == 3 and seeds[0] == make_request(row_of("a"), SQ, seed=7).seed
    assert play(tmp_path / "again", [RIGHT, WRONG, WRONG])[2] == seeds


def test_a_vote_without_one_of_its_paths_is_not_judged_but_played_again(tmp_path):
    outcome, record, _ = play(tmp_path, [RIGHT, FAILS, RIGHT])
    assert (outcome.failed, outcome.right, record["status"]) == (True, None, "engine_failure")
    outcome, record, _ = play(tmp_path, [RIGHT, WRONG, RIGHT])
    assert outcome.right is True and record["try"] == 2


def test_greedy_paths_are_refused(tmp_path):
    data = tmp_path / "q.jsonl"
    data.write_text('{"question": "Who?", "answer": "Rome"}\n')
    given = EvalArguments(
        questions=[data], out=tmp_path / "run", model="m", base_url="http://127.0.0.1:1/v1", engine="chat",
        overrides=["rag_r1.agent.paths=3"],
    )  # fmt: skip
    assert isinstance(given, RolloutArguments)
    with pytest.raises(RunError, match="rag_r1.agent.paths above 1 needs a --temperature above 0"):
        prepare(given, {})


@pytest.mark.parametrize("section", ["agent", "validation_agent"])
def test_a_training_refuses_them_and_names_what_it_has_instead(section):
    settings = RagR1Config.from_config({"protocol": "rag_r1_mq", section: {"paths": 3}})
    with pytest.raises(ValueError, match=f"rag_r1.{section}.paths is 3.*rollout.n=3"):
        settings.check_paths()
    RagR1Config.from_config({"protocol": "rag_r1_mq"}).check_paths()
