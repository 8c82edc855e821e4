"""Many episodes at once: each ask is played once, and the order in which they end changes nothing."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.agent.records import trajectory_of
from rag_r1.protocols import Failure
from rag_r1.rewards import RewardError, RewardSum
from rag_r1.rollouts.requests import make_request
from rag_r1.rollouts.runner import CorrectnessRule, EpisodeRunner
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.errors import RunError
from tests.evaluation.scripted_runs import (
    FAILS,
    RIGHT,
    SQ,
    WRONG,
    folder_at,
    row_of,
    runner_of,
    setup_of,
    untimed,
)
from tests.fakes import virtual_time
from tests.fakes.scripted_engine import Searcher

SCRIPT = {"a": [RIGHT], "b": [WRONG], "c": [FAILS], "d": [RIGHT], "e": [WRONG], "f": [RIGHT]}


def asks(names="abcdef"):
    return [make_request(row_of(name), SQ) for name in names]


def play(path: Path, script=SCRIPT, names="abcdef", played=None, **given):
    """(outcomes, records in the order of the asks) of one start."""
    played = [] if played is None else played

    async def main():
        with folder_at(path) as folder:
            runner = runner_of(folder, script, played, **given)
            jobs = [partial(runner.play, ask) for ask in asks(names)]
            outcomes = await runner.run(jobs, len(jobs), "trace")
            return outcomes, list(folder.records([ask.id for ask in asks(names)]))

    return virtual_time.run(main())


def test_results_are_in_the_order_of_the_asks_and_records_have_what_is_needed(tmp_path: Path):
    outcomes, records = play(tmp_path, pause=lambda ask, turn: 10.0 - ord(ask.question_id) % 7)
    assert [outcome.id for outcome in outcomes] == [f"{name}#0" for name in "abcdef"]
    assert [outcome.right for outcome in outcomes] == [True, False, None, True, False, True]
    first, third = records[0], records[2]
    assert (first["question_id"], first["sample"], first["golds"]) == ("a", 0, ["Rome"])
    assert first["rewards"] == {"score": 1.0 + 0.0, "em": 1.0, "f1": 1.0, "missing_terms": 0.0}
    assert first["prompt"] == SQ.messages("What is a?") and first["try"] == 1
    assert (third["status"], third["right"]) == ("engine_failure", None)
    assert third["rewards"] == {"score": None, "em": None, "f1": None, "missing_terms": 2.0}
    trajectory = trajectory_of(first)
    assert (trajectory.answer, trajectory.n_searches) == ("Rome", 1)


@settings(max_examples=15)
@given(pauses=st.lists(st.floats(0, 5), min_size=12, max_size=12), in_flight=st.integers(1, 8))
def test_the_order_in_which_episodes_end_changes_no_record(pauses, in_flight, tmp_path_factory):
    def pause(ask, turn):
        return pauses["abcdef".index(ask.question_id) * 2 + turn]

    _, records = play(tmp_path_factory.mktemp("run"), pause=pause, in_flight=in_flight)
    _, plain = play(tmp_path_factory.mktemp("run"))
    assert list(map(untimed, records)) == list(map(untimed, plain))


def test_no_more_episodes_are_under_way_than_allowed(tmp_path: Path):
    under_way, most = 0, 0

    async def main():
        with folder_at(tmp_path) as folder:
            runner = runner_of(folder, SCRIPT, [], pause=lambda ask, turn: 1.0, in_flight=2)

            async def job(ask):
                nonlocal under_way, most
                under_way += 1
                most = max(most, under_way)
                await runner.play(ask)
                under_way -= 1

            await runner.run([partial(job, ask) for ask in asks()], 6, "trace")

    virtual_time.run(main())
    assert most == 2


def test_a_second_start_plays_only_what_failed_until_the_tries_are_used_up(tmp_path: Path):
    played: list[str] = []
    for _ in range(4):
        outcomes, _ = play(tmp_path, played=played, tries=3)
    assert sorted(played) == [f"{name}#0" for name in "abcccdef"]
    assert (outcomes[2].failed, outcomes[2].tries) == (True, 3)
    more: list[str] = []
    outcomes, records = play(tmp_path, {**SCRIPT, "c": [RIGHT]}, played=more, tries=4)
    assert more == ["c#0"] and outcomes[2].right is True
    assert records[2]["try"] == 4 and len(records) == 6


def test_an_ask_that_failed_is_not_played_twice_in_one_start(tmp_path: Path):
    played: list[str] = []
    play(tmp_path, names="cc", played=played, in_flight=1)
    assert played == ["c#0"]


def test_a_failed_search_is_no_wrong_answer(tmp_path: Path):
    async def main():
        with folder_at(tmp_path) as folder:
            base = runner_of(folder, SCRIPT, [])
            searcher = Searcher(Failure("away", "retriever", "503"))
            runner = EpisodeRunner(setup_of(searcher), base.make_engine, base.reward, folder)
            return await runner.play(asks("b")[0])

    outcome = virtual_time.run(main())
    assert (outcome.right, outcome.status, outcome.tool_failures) == (None, "tool_failure", 1)


def play_with_little_room(path: Path, played: list[str]):
    async def main():
        with folder_at(path) as folder:
            runner = runner_of(folder, {"a": [RIGHT]}, played)
            setup = setup_of()
            budget = type(setup.budget)(**{**vars(setup.budget), "max_prompt_tokens": 10})
            runner.setup = type(setup)(**{**vars(setup), "budget": budget})
            ask = asks("a")[0]
            return [await runner.play(ask)], [folder.record(ask.id)]

    return virtual_time.run(main())


def test_a_prompt_that_is_too_long_is_not_tried_again(tmp_path: Path):
    played: list[str] = []
    for _ in range(2):
        [outcome], [record] = play_with_little_room(tmp_path, played)
    assert record["status"] == "bad_row" and outcome.right is None
    assert len(played) == 1


def test_a_stopped_run_loses_nothing_and_goes_on(tmp_path: Path):
    played: list[str] = []
    stop = None

    async def main():
        nonlocal stop
        stop = CancelToken()
        with folder_at(tmp_path) as folder:
            runner = runner_of(folder, SCRIPT, played, pause=lambda ask, turn: 1.0, stop=stop, in_flight=2)
            asyncio.get_running_loop().call_later(3.5, stop, "enough")
            jobs = [partial(runner.play, ask) for ask in asks()]
            return await runner.run(jobs, 6, "trace")

    outcomes = virtual_time.run(main())
    ended = [outcome is not None for outcome in outcomes]
    assert ended == [True, True, False, False, False, False] and stop.reason == "enough"
    again: list[str] = []
    outcomes, records = play(tmp_path, played=again)
    assert sorted(again) == ["c#0", "d#0", "e#0", "f#0"] and len(records) == 6


def test_an_endpoint_that_is_gone_ends_the_run(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("rag_r1.rollouts.runner.MAX_CONSECUTIVE_FAILURES", 3)
    script = {name: [RIGHT if name == "b" else FAILS] for name in "abcdefgh"}
    played: list[str] = []

    async def main():
        with folder_at(tmp_path) as folder:
            runner = runner_of(folder, script, played, in_flight=1)
            jobs = [partial(runner.play, ask) for ask in asks("abcdefgh")]
            await runner.run(jobs, 8, "trace")
            return runner.stop.reason

    assert (
        "3 episodes in a row got no answer; the last: ConnectionError: the endpoint is away"
        in virtual_time.run(main())
    )
    assert played == [f"{name}#0" for name in "abcde"]


def test_a_reward_with_a_bug_ends_the_run_with_its_name(tmp_path: Path):
    def broken(trajectory, golds):
        raise ZeroDivisionError

    async def main():
        with folder_at(tmp_path) as folder:
            runner = runner_of(folder, SCRIPT, [])
            (term,) = RewardSum.from_config([{"term": "em"}]).terms
            runner.reward = RewardSum((type(term)("mine", 1.0, broken),))
            jobs = [partial(runner.play, ask) for ask in asks("ab")]
            await runner.run(jobs, 2, "trace")

    with pytest.raises(RewardError, match="reward term 'mine' failed on trajectory '[ab]#0'"):
        virtual_time.run(main())


def test_a_full_disk_ends_the_run(tmp_path: Path):
    async def main():
        with folder_at(tmp_path) as folder:

            def full(record):
                raise RunError("cannot write")

            folder.write = full
            runner = runner_of(folder, SCRIPT, [])
            await runner.run([partial(runner.play, ask) for ask in asks()], 6, "trace")

    with pytest.raises(RunError, match="cannot write"):
        virtual_time.run(main())


def test_a_disk_that_is_full_after_a_stop_ends_the_run_too(tmp_path: Path):
    """The episodes under way are waited for, and the record of one of them cannot be written."""

    async def main():
        with folder_at(tmp_path) as folder:

            def full(record):
                raise RunError("cannot write")

            folder.write = full
            stop = CancelToken()
            runner = runner_of(folder, SCRIPT, [], pause=lambda ask, turn: 1.0, stop=stop)
            runner.pool.wait_until_idle = partial(asyncio.sleep, 9.0)
            asyncio.get_running_loop().call_later(0.5, stop, "enough")
            await runner.run([partial(runner.play, ask) for ask in asks()], 6, "trace")

    with pytest.raises(RunError, match="cannot write"):
        virtual_time.run(main())


@pytest.mark.parametrize(
    ("rewards", "right"), [({"f1": 0.9}, True), ({"f1": 0.7}, False), ({"f1": None}, None), ({}, None)]
)
def test_what_is_right_is_a_threshold_on_a_term(rewards, right):
    assert CorrectnessRule("f1", 0.8).is_right(rewards) is right
