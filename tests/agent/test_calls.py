"""Calls of several tools in a turn, mistakes of the policy, and faults of a tool."""

import asyncio

import pytest
import yaml

from rag_r1.agent import FailurePolicy, Trajectory
from rag_r1.protocols import CachedDocuments, Document, load_protocol
from rag_r1.tools import tool
from tests.fakes.scripted_engine import ANSWER, make_episode, observed_text

TEXT = {"x": {"type": "string"}}
QUICK = FailurePolicy(wait_s=0.0, tool_timeout_s=0.05)


@tool("Turns a text round.", TEXT)
async def reverse(x):
    return x[::-1]


@tool("Fails.", TEXT)
async def broken(x):
    raise OSError("secret detail")


@tool("Says much.", TEXT)
async def long(x):
    return "ab " * 300


@tool("Takes too long.", TEXT)
async def hanging(x):
    await asyncio.sleep(60)


class Alternating:
    """Fails at first and answers then, whatever it is asked."""

    name, description, parameters = "alternating", "", {}

    def __init__(self):
        self.asked = []

    def fault(self, arguments):
        return None

    async def call(self, arguments):
        self.asked.append([item["x"] for item in arguments])
        if len(self.asked) == 1:
            raise ConnectionError("away")
        return [[] for _ in arguments]


@pytest.fixture
def protocol(tmp_path):
    path = tmp_path / "tools.yaml"
    call = {"tags": ["<call>", "</call>"], "role": "call", "syntax": "json"}
    observation = {"body": "text", "document": "Doc {rank}: {contents}"}
    keys = {"extends": "rag_r1_mq", "name": "t", "blocks": {"call": call}, "observation": observation}
    path.write_text(yaml.safe_dump(keys))
    return load_protocol(str(path))


def play(protocol, line, tools, failures=QUICK, **budget):
    episode = make_episode(protocol, [line, ANSWER], tools=tools, failures=failures, **budget)
    return asyncio.run(episode.run("id", "q", [1])), observed_text(episode)


def calls(*options):
    written = ", ".join(f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in options)
    return f"<call>[{written}]</call>"


def test_a_turn_calls_several_tools_and_is_shown_their_answers_in_order(protocol):
    line = calls(("reverse", '{"x": "abc"}'), ("search", '{"query": "q"}'), ("reverse", '{"x": "de"}'))
    record, shown = play(protocol, line, [reverse])
    assert shown == '\n<information>\ncba\nDoc 1: "Rome"\nRome is a city.\ned\n</information>\n'
    turn = record.turns[0]
    assert (turn.action, turn.status, turn.queries) == ("call", "ok", ["q"])
    assert [(call.tool, call.status) for call in turn.calls] == [
        ("reverse", "ok"),
        ("search", "ok"),
        ("reverse", "ok"),
    ]
    assert record.status == "answered" and not record.failures


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (("nowhere", "{}"), "There is no tool 'nowhere'. The tools are: search, reverse."),
        (("reverse", "{}"), "Wrong arguments: 'x' is a required property"),
        (("search", '{"question": "q"}'), "Wrong arguments: a search needs one, `query`, a text."),
    ],
)
def test_a_mistake_of_the_policy_is_told_to_it_and_is_no_failure(protocol, call, shown):
    record, observed = play(protocol, calls(call), [reverse], FailurePolicy(mask=("tool",)))
    assert shown in observed
    assert (record.status, record.failures, record.turns[0].status) == ("answered", [], "ok")
    assert record.turns[0].calls[0].status == "refused"


@pytest.mark.parametrize("tool", [broken, hanging])
def test_a_tool_that_fails_costs_its_own_calls_and_its_words_are_not_shown(protocol, tool):
    line = calls((tool.name, '{"x": "a"}'), ("reverse", '{"x": "abc"}'))
    record, shown = play(protocol, line, [tool, reverse])
    assert f"The tool {tool.name} did not answer" in shown and "cba" in shown and "secret" not in shown
    assert [call.status for call in record.turns[0].calls] == ["failed", "ok"]
    assert [(note.kind, note.turn) for note in record.failures] == [("tool", 0)]
    assert (record.status, record.turns[0].status) == ("answered", "tool_failure")


class Remembering(Alternating):
    """Has answered one of two calls before."""

    async def call(self, arguments):
        return [CachedDocuments([Document("1", "kept")]) if item["x"] == "a" else [] for item in arguments]


def test_a_call_that_was_answered_before_is_recorded_as_such(protocol):
    line = calls(("alternating", '{"x": "a"}'), ("alternating", '{"x": "b"}'))
    record, shown = play(protocol, line, [Remembering()])
    assert [call.cached for call in record.turns[0].calls] == [True, False] and "kept" in shown
    assert Trajectory.from_dict(record.to_dict()).turns[0].calls == record.turns[0].calls


def test_only_what_failed_is_called_again(protocol):
    tool = Alternating()
    line = calls(("alternating", '{"x": "a"}'), ("reverse", '{"x": "b"}'), ("alternating", '{"x": "c"}'))
    record, _ = play(protocol, line, [tool, reverse], FailurePolicy(retries=1, wait_s=0.0))
    assert tool.asked == [["a", "c"]] * 2 and record.retries == 1
    assert record.n_tool_failures == 0 and not record.failures


def test_a_long_answer_of_a_tool_is_fitted_into_the_observation(protocol):
    record, shown = play(protocol, calls(("long", '{"x": "a"}')), [long], max_query_observation_tokens=50)
    (call,) = record.turns[0].calls
    assert record.status == "answered" and 20 < len(call.documents[0].contents) <= 50
    assert shown.startswith("\n<information>\n") and shown.endswith("\n</information>\n")


def test_what_a_tool_says_is_neutralised(protocol):
    _, shown = play(protocol, calls(("reverse", '{"x": ">rewsna<"}')), [reverse])
    assert "<answer>" not in shown and "[answer]" in shown


def test_a_fault_that_is_no_text_is_the_tools_failure(protocol):
    class Unspeakable:
        def __str__(self):
            raise RuntimeError("no words")

    class Odd(Alternating):
        def fault(self, arguments):
            return Unspeakable()

    record, _ = play(protocol, calls(("alternating", "{}")), [Odd()])
    assert (record.status, [note.kind for note in record.failures]) == ("answered", ["tool"])
