"""The limits of a single tool, what a tool may refuse, and a weight update while a tool is at work."""

import asyncio
import json
from collections import defaultdict

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import FailurePolicy
from rag_r1.agent.records import summary
from rag_r1.agent.tool_executor import ToolExecutor
from rag_r1.agent.trajectory import CallRecord
from rag_r1.options.tool_limits import ToolLimits
from rag_r1.protocols import Document, Failure, Refusal, load_protocol
from rag_r1.tools import tool
from tests.fakes import virtual_time
from tests.fakes.scripted_engine import ANSWER, Engine, make_episode, observed_text

TEXT = {"x": {"type": "string"}}
HOUR = 3600.0


@pytest.fixture(scope="module")
def protocol(tmp_path_factory):
    path = tmp_path_factory.mktemp("protocol") / "tools.yaml"
    call = {"tags": ["<call>", "</call>"], "role": "call", "syntax": "json"}
    path.write_text(yaml.safe_dump({"extends": "rag_r1_mq", "name": "t", "blocks": {"call": call}}))
    return load_protocol(str(path))


def calls(name, *texts):
    return f"<call>{json.dumps([{'name': name, 'arguments': {'x': x}} for x in texts])}</call>"


def play(protocol, lines, tools, failures=None, engine=None):
    """An episode in virtual time: its record, what it was shown, and the engine."""
    engine = engine or Engine(lines)
    failures = failures or FailurePolicy(wait_s=0.0)
    episode = make_episode(protocol, engine, tools=tools, failures=failures, max_turns=8)
    return virtual_time.run(episode.run("id", "q", [1])), observed_text(episode), engine


def slow(seconds, **limits):
    """A tool that takes so long for each call, and notes its calls."""
    requests = []

    @tool("Slow.", TEXT, name="slow", limits=ToolLimits(**limits))
    async def built(x):
        requests.append(x)
        await asyncio.sleep(seconds.get(x, 0.0))
        return f"[{x} done]"

    built.asked = requests
    return built


def test_a_call_that_hangs_costs_itself_alone_after_the_time_limit_of_its_tool(protocol):
    built = slow({"b": 1000 * HOUR}, timeout_s=5.0)
    record, output, _ = play(protocol, [calls("slow", "a", "b", "c"), ANSWER], [built])
    assert [call.status for call in record.turns[0].calls] == ["ok", "failed", "ok"]
    assert "[a done]" in output and "[c done]" in output and "did not answer" in output
    assert record.failures[0].detail == "no answer within 5 s" and record.status == "answered"


def test_each_tool_is_retried_as_often_as_it_says(protocol):
    built = slow({"b": HOUR}, timeout_s=5.0, retries=3)
    record, _, _ = play(protocol, [calls("slow", "a", "b"), ANSWER], [built])
    assert sorted(built.asked) == ["a", "b", "b", "b", "b"] and record.retries == 3


def test_calls_beyond_those_of_an_episode_are_refused_in_words(protocol):
    built = slow({}, max_calls=3)
    record, output, _ = play(protocol, [calls("slow", "a", "b"), calls("slow", "c", "d"), ANSWER], [built])
    assert built.asked == ["a", "b", "c"]
    assert [call.status for turn in record.turns for call in turn.calls] == ["ok", "ok", "ok", "refused"]
    assert "The tool slow can be called 3 times, and it was." in output and not record.failures
    report = summary(record)
    assert (report["calls"], report["refused_calls"], report["failed_calls"]) == (4, 1, 0)


def test_a_call_that_the_tool_refuses_is_a_mistake_of_the_policy_and_does_not_count(protocol):
    @tool("Picky.", TEXT, limits=ToolLimits(max_calls=1))
    async def picky(x):
        return Refusal("Not <search>that</search>.") if x == "bad" else "yes"

    failures = FailurePolicy(mask=("tool",))
    record, output, _ = play(
        protocol, [calls("picky", "bad"), calls("picky", "good"), ANSWER], [picky], failures
    )
    assert [call.status for turn in record.turns for call in turn.calls] == ["refused", "ok"]
    assert "Not [search]that[/search]." in output and "yes" in output
    assert (record.status, record.failures) == ("answered", [])


CALLS = st.lists(st.sampled_from(["answers", "fails", "hangs", "refuses", "lies", "nowhere"]), max_size=5)


@given(st.lists(CALLS, min_size=1, max_size=4), st.integers(1, 4), st.booleans())
def test_whatever_tools_do_each_call_gets_what_it_deserves_and_the_counts_agree(turns, most, together):
    """Every call has the status that its tool earned; the calls that were accepted are at most `most`."""
    does = {
        "answers": lambda: [Document("1", "text")],
        "fails": lambda: 1 / 0,
        "hangs": lambda: asyncio.sleep(1e9),
        "refuses": lambda: Refusal("no"),
        "lies": lambda: [3],
    }

    async def main():
        limits = ToolLimits(timeout_s=1.0, max_calls=most)
        tools = {name: Fake(name, act, limits, together) for name, act in does.items()}
        guard = ToolExecutor(tools, FailurePolicy(), None)
        for turn in turns:
            calls = [CallRecord(name, {}) for name in turn]
            results = await guard.call(calls)
            for call, result in zip(calls, results, strict=True):
                assert isinstance(result, Failure) == (call.status == "failed")
                report[call.tool].append(call.status)
        for name, statuses in report.items():
            assert guard.accepted[name] == sum(status != "refused" for status in statuses) <= most

    report = defaultdict(list)
    virtual_time.run(main())
    for name, statuses in report.items():
        earned = {"answers": "ok", "refuses": "refused", "nowhere": "refused"}.get(name, "failed")
        first = statuses if earned == "refused" else statuses[:most]
        assert set(first) <= {earned} and set(statuses[len(first) :]) <= {"refused"}


class Fake:
    """A tool that does one thing; alone for each call, or for all of a turn together."""

    description, parameters = "", {}

    def __init__(self, name, act, limits, together):
        self.name, self.act, self.limits, self.together = name, act, limits, together

    def fault(self, arguments):
        return None

    async def call(self, arguments):
        return [await done if asyncio.iscoroutine(done := self.act()) else done for _ in arguments]


class Updating(Engine):
    """An engine whose weights are updated at given times (seconds); a generation that begins in the hour of
    an update waits for its end, as under veRL's asynchronous trainers."""

    def __init__(self, lines, updates):
        super().__init__(lines, pause=self.wait)
        self.updates, self.versions = updates, []

    async def wait(self):
        now = asyncio.get_running_loop().time()
        for begins in self.updates:
            if begins <= now < begins + HOUR:
                await asyncio.sleep(begins + HOUR - now)
        now = asyncio.get_running_loop().time()
        self.versions.append(1 + sum(begins + HOUR <= now for begins in self.updates))


@pytest.mark.parametrize("seconds", [60.0, 5000.0])
def test_a_weight_update_during_a_call_neither_repeats_nor_loses_it(protocol, seconds):
    """The call ends during the update, or after it; the next turn is the new weights'."""
    built = slow({"a": seconds}, timeout_s=2 * HOUR)
    line = calls("slow", "a")
    record, output, engine = play(protocol, None, [built], engine=Updating([line, ANSWER], updates=[30.0]))
    still, undisturbed, _ = play(protocol, [line, ANSWER], [slow({}, timeout_s=2 * HOUR)])
    assert built.asked == ["a"] and engine.versions == [1, 2] and record.retries == 0
    assert output == undisturbed and not record.failures
    assert (record.status, record.generated_tokens) == (still.status, still.generated_tokens)
    assert record.turns[0].calls[0].status == "ok"


@pytest.mark.parametrize("own_limit_s", [None, 7.0])
def test_a_check_of_arguments_that_hangs_is_a_failure_after_the_time_limit(protocol, own_limit_s):
    """The check is a user's own code; without a limit one call would stop the whole batch."""
    built = slow({}, timeout_s=own_limit_s)
    built.checked = lambda arguments: asyncio.sleep(HOUR)
    failures = FailurePolicy(tool_timeout_s=20.0)
    record, shown, _ = play(protocol, [calls("slow", "a"), ANSWER], [built], failures)
    assert (record.status, record.n_tool_failures, built.asked) == ("answered", 1, [])
    assert f"no answer within {own_limit_s or 20.0:g} s" in record.failures[0].detail
