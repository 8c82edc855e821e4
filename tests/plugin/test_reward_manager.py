"""The reward manager with terms that wait and terms that judge turns: what veRL gets, what the disk gets."""

from __future__ import annotations

import asyncio
import math
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest
from omegaconf import OmegaConf

from rag_r1.agent import Trajectory, Turn
from rag_r1.agent.records import read_records, trajectory_of
from rag_r1.agent.tokens.signals import signals
from rag_r1.plugin.reward_manager import SearchRewardManager
from tests.fakes import virtual_time

REWARD = [
    {"term": "em", "weight": 1.0},
    {"term": "own_judges:judge", "weight": 0.5},
    {"term": "own_judges:by_turn", "weight": 0.25},
]


@pytest.fixture(autouse=True)
def own_module(monkeypatch):
    async def judge(trajectory, golds, *, takes_s: float = 30.0):
        await asyncio.sleep(takes_s)
        return 1.0

    def by_turn(trajectory, golds):
        return [float(len(turn.queries)) for turn in trajectory.turns]

    module = types.ModuleType("own_judges")
    vars(module).update(judge=judge, by_turn=by_turn)
    monkeypatch.setitem(sys.modules, "own_judges", module)


def manager(tmp_path, reward, tools=None, model=None, **failures) -> SearchRewardManager:
    block = {
        "tools": tools or {},
        "protocol": "rag_r1_mq",
        "reward": reward,
        "failures": failures,
        "trajectory_dir": str(tmp_path),
        "agent": {"max_turns": 2, "max_turn_tokens": 100},
        "retriever": {"url": "http://127.0.0.1:9"},
    }
    config = {"rag_r1": block, "actor_rollout_ref": {"model": {"path": model}}}
    return SearchRewardManager(OmegaConf.create(config), None, None)


def rows(number: int = 0, count: int = 1) -> list[SimpleNamespace]:
    """The rows of one trajectory, as veRL sends them."""
    turns = [Turn.searched("", ["a", "b"]), Turn.searched("", ["c"]), Turn("", "answer")]
    record = Trajectory(f"q{number}#0", "Who?", "rag_r1_mq", turns, "x", "answered")
    fields = {
        "tool_extra_fields": {"trajectory": record.to_dict()},
        "reward_model": {"ground_truth": {"target": ["x"]}},
        "global_steps": 1,
    }
    return [SimpleNamespace(non_tensor_batch=fields) for _ in range(count)]


def test_the_record_has_the_turns_scores_and_verl_the_total_and_numbers(tmp_path):
    result = virtual_time.run(manager(tmp_path, REWARD).run_single(rows()))
    (record,) = map(trajectory_of, read_records(tmp_path))
    assert record.turn_scores == [0.5, 0.25, 1.5]
    assert math.fsum(record.turn_scores) == record.rewards["score"] == result["reward_score"] == 2.25
    info = result["reward_extra_info"]
    # veRL's validation takes the means of what is known, and leaves out texts.
    assert info.pop("source") == ""
    unknown = {name for name, value in info.items() if value is None}
    assert unknown <= set(signals(record)) and "queries_per_search" not in unknown
    assert all(type(value) is float for name, value in info.items() if name not in unknown)


def test_a_record_says_what_its_score_and_its_policy_were_made_of(tmp_path):
    (sample,) = rows()
    sample.non_tensor_batch["tool_extra_fields"] |= {"min_global_steps": 2, "max_global_steps": 3}
    supporting = {"supporting_ids": ["7", "3"], "supporting_titles": np.array(["Paris"], dtype=object)}
    sample.non_tensor_batch |= {"uid": "a-b", "extra_info": {"split": "train", **supporting}}
    virtual_time.run(manager(tmp_path, REWARD, model="/models/small").run_single([sample]))
    (record,) = read_records(tmp_path)
    weighted = sum(weight * record["rewards"][term] for term, weight in record["reward_weights"].items())
    assert weighted == record["rewards"]["score"] == 2.25
    assert record["metadata"] == {"supporting_ids": ["3", "7"], "supporting_titles": ["paris"]}
    assert (record["group"], record["policy_steps"], record["model"]) == ("a-b", [2, 3], "/models/small")
    assert record["time"] > 0


def test_calls_are_counted_for_each_tool_of_the_configuration_if_there_are_others_than_the_search(tmp_path):
    for tools, counted in ((None, {}), ({"notes": "calculator"}, {"search": 3.0, "notes": 0.0})):
        result = virtual_time.run(manager(tmp_path, REWARD, tools).run_single(rows()))
        info = result["reward_extra_info"]
        assert {name[6:]: value for name, value in info.items() if name.startswith("calls/")} == counted
        failed = {name[13:] for name in info if name.startswith("failed_calls/")}
        assert failed == set(counted) and info["calls"] == 3.0


def test_a_trajectory_of_several_rows_is_judged_and_written_once(tmp_path):
    result = virtual_time.run(manager(tmp_path, REWARD).run_single(rows(count=3)))
    assert result["reward_score"] == 2.25
    assert [record["id"] for record in read_records(tmp_path)] == ["q0#0"]


def test_while_a_judge_thinks_other_trajectories_are_judged(tmp_path):
    judging = manager(tmp_path, REWARD)

    async def timed() -> float:
        await asyncio.gather(*(judging.run_single(rows(number)) for number in range(20)))
        return asyncio.get_running_loop().time()

    assert virtual_time.run(timed()) == pytest.approx(30)
    assert len(list(read_records(tmp_path))) == 20


@pytest.mark.parametrize(("mask", "score", "turns"), [(["judge"], None, []), ([], 1.75, [0.5, 0.25, 1.0])])
def test_a_judge_that_is_late_is_a_failure_of_the_judge(tmp_path, mask, score, turns):
    late = [REWARD[0], {**REWARD[1], "timeout_s": 20}, REWARD[2]]
    info = virtual_time.run(manager(tmp_path, late, mask=mask).run_single(rows()))["reward_extra_info"]
    (record,) = map(trajectory_of, read_records(tmp_path))
    assert (info["score"], info["judge"], info["missing_terms"]) == (score, None, 1.0)
    assert (info["failed_judge"], info["masked"]) == (1.0, float(bool(mask)))
    assert (record.rewards["score"], record.turn_scores) == (score, turns)
    assert [note.detail for note in record.failures] == ["no value for judge (no answer within 20 s)"]
