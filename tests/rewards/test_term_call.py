"""Terms that wait for a judge: what they may answer, how long they may take, and what ends the run."""

from __future__ import annotations

import asyncio
import math
import sys
import types
from functools import partial

import pytest

from rag_r1.agent import Trajectory, Turn
from rag_r1.protocols import load_protocol
from rag_r1.rewards import CannotJudgeError, RewardError, RewardResult, RewardSum
from tests.fakes import virtual_time

PLAYED = Trajectory(
    "t1", "?", "rag_r1_mq", turns=[Turn("", "search"), Turn("", "answer")], answer="Paris", status="answered"
)


@pytest.fixture
def own_module(monkeypatch):
    """A module such as a user writes beside the project, with judges that are away, unsure and broken."""

    async def judge(trajectory, golds, *, answer: float = 0.5, takes_s: float = 0.0):
        await asyncio.sleep(takes_s)
        return answer

    async def by_turn(trajectory, golds):
        await asyncio.sleep(0)
        return [0.25 * (i + 1) for i in range(len(trajectory.turns))]

    async def declines(trajectory, golds):
        raise CannotJudgeError("the judge declined")

    async def gives_up(trajectory, golds):
        raise TimeoutError

    async def silent(trajectory, golds):
        return None

    async def unsure(trajectory, golds):
        return [1.0, math.nan]

    async def stubborn(trajectory, golds):
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                if trajectory.id == "end":
                    raise

    async def broken(trajectory, golds, *, takes_s: float = 0.0):
        await asyncio.sleep(takes_s)
        raise ZeroDivisionError("division by zero")

    async def cancels(trajectory, golds):
        raise asyncio.CancelledError

    async def short(trajectory, golds):
        return [1.0]

    async def limited(trajectory, golds, *, protocol, timeout_s: float):
        return timeout_s + protocol.max_queries

    def plain_refuses(trajectory, golds):
        raise CannotJudgeError("no such passage")

    def plain_late(trajectory, golds):
        raise TimeoutError("no plain function may time out")

    class Judge:
        async def __call__(self, trajectory, golds):
            return 0.75

    module = types.ModuleType("own_judges")
    vars(module).update(
        {name: value for name, value in locals().items() if callable(value)},
        instance=Judge(), half=partial(judge, answer=0.5),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "own_judges", module)
    return module


def reward_of(*entries: dict | str) -> RewardSum:
    entries = [{"term": entry} if isinstance(entry, str) else entry for entry in entries]
    paths = [f"own_judges:{e['term']}" if e["term"] not in ("em", "cover_em") else e["term"] for e in entries]
    config = [{**entry, "term": path} for entry, path in zip(entries, paths, strict=True)]
    return RewardSum.from_config(config, load_protocol("rag_r1_mq"))


def judged(*entries: dict | str, golds: str = "Paris") -> RewardResult:
    return virtual_time.run(reward_of(*entries).judge(PLAYED, golds))


def test_async_and_plain_terms_are_summed_in_the_order_of_the_list(own_module):
    judgement = judged({"term": "judge", "weight": 2.0}, "em", {"term": "by_turn", "weight": 4.0})
    rewards = {"score": 5.0, "judge": 0.5, "em": 1.0, "by_turn": 0.75, "missing_terms": 0.0}
    assert judgement == RewardResult(rewards, [1.0, 4.0], {})
    assert list(judgement.rewards) == list(rewards)


@pytest.mark.parametrize("term", ["instance", "half"])
def test_an_object_or_a_partial_function_may_be_async(own_module, term):
    assert judged(term).rewards[term] == {"instance": 0.75, "half": 0.5}[term]


def test_a_sum_without_async_terms_is_judged_as_it_is_called(own_module):
    reward = reward_of("em", {"term": "cover_em", "weight": 0.5})
    assert virtual_time.run(reward.judge(PLAYED, "Paris")).rewards == reward(PLAYED, "Paris")


def test_calling_a_sum_with_async_terms_is_refused_by_name(own_module):
    with pytest.raises(RewardError, match=r"judge, silent: an async term must be awaited.*reward\.judge"):
        reward_of("em", "judge", "silent")(PLAYED, "Paris")


def test_all_async_terms_of_a_trajectory_run_at_the_same_time(own_module):
    async def timed() -> float:
        loop = asyncio.get_running_loop()
        started = loop.time()
        times = {"a": 20, "b": 30, "c": 30}
        entries = [{"term": "judge", "name": name, "takes_s": time} for name, time in times.items()]
        await reward_of(*entries).judge(PLAYED, "Paris")
        return loop.time() - started

    assert virtual_time.run(timed()) == pytest.approx(30)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"term": "judge", "takes_s": 61}, "no answer within 60 s"),
        ({"term": "judge", "takes_s": 5, "timeout_s": 4}, "no answer within 4 s"),
        ({"term": "gives_up"}, "a time-out of its own"),
        ({"term": "declines"}, "the judge declined"),
        ({"term": "plain_refuses"}, "no such passage"),
        ({"term": "silent"}, ""),
        ({"term": "unsure"}, ""),
    ],
)
def test_a_judge_without_a_judgement_is_left_out_of_every_turn(own_module, entry, why):
    judgement = judged({"term": "em", "weight": 2.0}, {**entry, "weight": 7.0})
    rewards = {"score": 2.0, "em": 1.0, entry["term"]: None, "missing_terms": 1.0}
    assert judgement == RewardResult(rewards, [0.0, 2.0], {entry["term"]: why})


def test_a_judge_within_its_time_counts(own_module):
    assert judged({"term": "judge", "takes_s": 61, "timeout_s": 62}).rewards["score"] == 0.5


def test_a_judge_that_ignores_its_time_is_left_behind(own_module):
    trajectory = Trajectory("t1", "?", "rag_r1_mq", turns=[Turn("", "answer")])

    async def judge() -> RewardResult:
        judgement = await reward_of("stubborn").judge(trajectory, "Paris")
        trajectory.id = "end"
        return judgement

    assert virtual_time.run(judge()).missing == {"stubborn": "no answer within 60 s"}


def test_a_term_is_told_its_time_and_the_protocol_if_it_asks(own_module):
    assert judged("limited").rewards["limited"] == 63.0
    assert judged({"term": "limited", "timeout_s": 1.5}).rewards["limited"] == 4.5


@pytest.mark.parametrize(
    ("term", "cause"),
    [
        ("broken", "ZeroDivisionError: division by zero"),
        ("short", "ValueError: 1 values for 2 turns"),
        ("plain_late", "TimeoutError: no plain function"),
        ("cancels", "RuntimeError: the call was cancelled"),
    ],
)
def test_any_other_failure_ends_the_run_with_the_names_of_term_and_trajectory(own_module, term, cause):
    with pytest.raises(RewardError, match=f"'{term}' failed on trajectory 't1': {cause}"):
        judged("em", term)


def test_when_one_judge_fails_the_others_are_cancelled(own_module):
    async def failing() -> int:
        with pytest.raises(RewardError, match="broken"):
            reward = reward_of({"term": "judge", "takes_s": 50}, {"term": "broken", "takes_s": 1})
            await reward.judge(PLAYED, "x")
        await asyncio.sleep(0.1)
        return len(asyncio.all_tasks())

    assert virtual_time.run(failing()) == 1


def test_a_score_beyond_all_numbers_is_refused_with_the_trajectory(own_module):
    with pytest.raises(RewardError, match="score of trajectory 't1' is invalid"):
        judged({"term": "judge", "weight": 1e308, "answer": 1e308})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"term": "judge", "timeout_s": 0}, r"timeout_s must be a number of seconds above 0, not 0"),
        ({"term": "judge", "timeout_s": "long"}, r"timeout_s must be a number of seconds above 0"),
        ({"term": "judge", "timeout_s": None}, r"timeout_s must be a number of seconds above 0"),
        (
            {"term": "judge", "timeout": 3},
            r"timeout: .*no such option \(its options: answer, takes_s, timeout_s\)",
        ),
        ({"term": "limited", "protocol": "x"}, r"protocol: .*no such option"),
        ({"term": "plain_refuses", "timeout_s": 3}, r"timeout_s: .*no such option \(its options: none\)"),
    ],
)
def test_a_wrong_option_of_an_async_term_is_refused_with_its_key(own_module, entry, message):
    with pytest.raises(RewardError, match=r"rag_r1\.reward\[0\]\." + message):
        reward_of(entry)
