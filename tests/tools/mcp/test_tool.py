"""Tools of MCP servers: what they answer, and what happens if they fail, hang or die."""

import asyncio
import contextlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from rag_r1.agent.records import summary
from rag_r1.protocols import Failure, Refusal, load_protocol
from rag_r1.tools import close_tools, make_tool, shared_tools
from rag_r1.tools.mcp.tool import content_text, has_mcp
from tests.fakes.scripted_engine import ANSWER, make_episode

pytestmark = [
    pytest.mark.slow,  # importing mcp takes seconds
    pytest.mark.skipif(not has_mcp(), reason="mcp 2 is not installed: pip install 'rag-r1[mcp]'"),
]
HERE = Path(__file__).parents[1]
#: The protocol's own reference server (modelcontextprotocol/servers), if it is installed somewhere in PATH.
TIME_SERVER = shutil.which("mcp-server-time")
COMMAND = [sys.executable, "-S", str(HERE.parent / "fakes" / "small_mcp_server.py")]


def entry(**more):
    return {"tool": "mcp", "command": COMMAND, **more}


def tools_of(**entries):
    return shared_tools({}, {name: entry(**more) for name, more in entries.items()})


async def text(tool, **arguments):
    (answer,) = await tool.call([arguments])
    return answer[0].contents if isinstance(answer, list) else answer


async def test_a_tool_of_a_server_answers_and_all_entries_share_its_process(monkeypatch):
    monkeypatch.setenv("GIVEN", "yes")
    monkeypatch.setenv("SECRET", "no")
    output = {"call": "variable", "env": ["GIVEN"]}
    tools = tools_of(echo={}, pid={}, which={"call": "pid"}, given=output)
    assert await text(tools["echo"], text="Grüße") == await text(tools["echo"], query="Grüße") == "Grüße"
    assert await text(tools["pid"]) == await text(tools["which"]) != ""
    assert [await text(tools["given"], text=name) for name in ("GIVEN", "SECRET")] == ["yes", "(not set)"]
    await close_tools(tools)


async def test_wrong_arguments_an_error_and_a_missing_tool_are_told_apart():
    tools = tools_of(echo={}, error={}, strict={"call": "error", "errors": "failures"}, none={"call": "x"})
    assert await text(tools["echo"], txt="a") == Refusal("Wrong arguments: 'text' is a required property")
    assert await text(tools["echo"], text="a", self="b") == "a", "any name is an argument's"
    assert await text(tools["error"]) == Refusal("the disk is full")
    strict, none = await text(tools["strict"]), await text(tools["none"])
    assert isinstance(strict, Failure) and "the disk is full" in strict.detail and "disk" not in strict.reason
    assert isinstance(none, Failure) and "it has: die, echo, error" in none.detail
    await close_tools(tools)


async def test_a_server_that_dies_or_hangs_costs_the_calls_that_it_had_and_is_started_again():
    tools = tools_of(pid={"timeout_s": 20}, die={"timeout_s": 20}, hang={"timeout_s": 20})
    first = await text(tools["pid"])
    died = await text(tools["die"])
    assert isinstance(died, Failure) and "Connection closed" in died.detail
    second = await text(tools["pid"])
    assert second not in (first, "")
    waiting = asyncio.ensure_future(text(tools["hang"]))
    await asyncio.sleep(0.1)
    waiting.cancel()  # as the guard does after the tool's time limit
    await asyncio.wait({waiting})
    assert await text(tools["pid"]) not in (first, second)
    await close_tools(tools)


async def test_a_server_of_the_official_package_is_understood():
    command = [sys.executable, str(HERE / "reference_mcp_server.py")]
    names = ("add", "town", "people", "written", "picture", "error")
    tools = tools_of(**{name: {"command": command} for name in names})
    assert await text(tools["add"], a=2) == "3"
    assert json.loads(await text(tools["town"], query="Ulm")) == {"name": "Ulm", "people": 3}
    assert await text(tools["people"], town={"name": "Ulm", "people": 3}) == "Ulm: 3"
    assert await text(tools["written"], words=["a", "b"]) == "A\nB"
    assert await text(tools["picture"]) == "(image, not shown)"
    reply = "Error executing tool error: the disk is full"
    assert await text(tools["error"], why="the disk is full") == Refusal(reply)
    for name, arguments, fault in (
        ("add", {"a": "x"}, "at ['a']: 'x' is not of type 'integer'"),
        ("people", {"town": {"name": "Ulm"}}, "at ['town']: 'people' is a required property"),
        ("written", {"words": ["a"], "how": "red"}, "at ['how']: 'red' is not one of ['small', 'large']"),
    ):
        assert await text(tools[name], **arguments) == Refusal(f"Wrong arguments {fault}")
    await close_tools(tools)


async def test_a_server_that_cannot_be_started_is_a_failure_that_says_why():
    tool = make_tool("x", {"tool": "mcp", "command": ["no-such-command"]})
    failure = await text(tool)
    assert isinstance(failure, Failure) and "cannot be reached: FileNotFoundError" in failure.detail
    tool = make_tool("x", {"tool": "mcp", "url": "http://127.0.0.1:9/mcp", "timeout_s": 5})
    assert "cannot be reached" in (await text(tool)).detail


def processes_with(word):
    """The command lines of this machine that hold a word."""
    results = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            results += [line] if word.encode() in (line := path.read_bytes()) else []
    return results


async def test_a_server_that_does_not_open_a_connection_is_ended(tmp_path):
    command = [sys.executable, "-S", "-c", "import time; time.sleep(600)", str(tmp_path)]
    tool = make_tool("x", {"tool": "mcp", "command": command, "timeout_s": 1.0})
    failure = await text(tool)
    assert isinstance(failure, Failure) and "did not open a connection within 1 s" in failure.detail
    given_up = asyncio.ensure_future(text(tool))
    await asyncio.sleep(0.5)
    given_up.cancel()
    await asyncio.wait({given_up})
    await tool.close()
    assert not processes_with(str(tmp_path))


async def test_an_episode_goes_on_whatever_its_tools_do_and_the_record_counts_it(tmp_path):
    (tmp_path / "p.yaml").write_text(
        "{extends: rag_r1_mq, name: p, max_queries: 4, "
        'blocks: {call: {tags: ["<call>", "</call>"], role: call, syntax: json}}}'
    )
    calls = ", ".join(f'{{"name": "{name}"}}' for name in ("error", "die", "hang", "nowhere"))
    echo = '<call>{"name": "echo", "arguments": {"text": "still here"}}</call>'
    limits = {"limits": {"timeout_s": 0.5}}
    tools = tools_of(error={}, die=limits, hang={**limits, "cwd": "."}, echo={})
    protocol, lines = load_protocol(str(tmp_path / "p.yaml")), [f"<call>[{calls}]</call>", echo, ANSWER]
    episode = make_episode(protocol, lines)
    episode.tools |= tools
    record = await episode.run("id", "q", [1])
    await close_tools(tools)
    statuses = [[call.status for call in turn.calls] for turn in record.turns]
    assert statuses[0][1:] == ["failed", "failed", "refused"] and statuses[1] == ["ok"]
    assert statuses[0][0] in ("refused", "failed"), "the server may have died before it could say its error"
    assert record.turns[1].calls[0].documents[0].contents == "still here"
    assert record.status == "answered" and summary(record)["failed_calls"] >= 2
    assert [note.kind for note in record.failures] == ["tool"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "rag_r1.tools.x.command|needs either a command or a url"),
        ({"command": COMMAND, "url": "http://a"}, "needs either a command or a url"),
        ({"command": []}, "needs either a command or a url"),
        ({"command": COMMAND, "token_env": "T"}, "rag_r1.tools.x.token_env has no effect .*: use env"),
        ({"command": "npx server"}, r"must be a list of texts, such as \[npx, server\]"),
        ({"url": "ftp://a"}, "must be an http"),
    ],
)
def test_a_server_that_is_not_named_rightly_is_refused_at_the_start(given, message):
    with pytest.raises(ValueError, match=message):
        make_tool("x", {"tool": "mcp", **given})


def test_a_tools_name_may_have_a_point_and_its_text_may_be_empty():
    from mcp_types import CallToolResult, TextContent

    assert make_tool("files.read", entry()).name == "files.read"
    assert content_text(CallToolResult(content=[TextContent(type="text", text="")])) == ""


def test_a_servers_regular_expressions_are_not_run():
    from rag_r1.sandbox.json_schema import make_validator

    def is_valid(schema, arguments):
        return make_validator(schema, patterns=False).is_valid(arguments)

    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^b$"}}}
    assert is_valid(schema, {"x": "a"}) and not is_valid(schema, {"x": 1})
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    assert is_valid({"properties": {"y": {**dialect, **schema}}}, {"y": {"x": "a"}})
    assert not is_valid({**schema, "additionalProperties": False}, {"y": 1})
    named = {**schema, "patternProperties": {"^b$": {}}, "additionalProperties": False}
    assert is_valid(named, {"a": 1})


@pytest.mark.skipif(TIME_SERVER is None, reason="left out: there is no mcp-server-time in PATH")
async def test_the_tools_of_the_protocols_reference_server_answer():
    convert = {"tool": "mcp", "command": [TIME_SERVER], "call": "convert_time"}
    tools = shared_tools({}, {"convert_time": convert})
    given = {"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "Etc/UTC"}
    answer = json.loads(await text(tools["convert_time"], **given))
    assert "T03:00:00" in answer["target"]["datetime"] and answer["target"]["timezone"] == "Etc/UTC"
    refused = await text(tools["convert_time"], **given | {"time": "noon"})
    assert isinstance(refused, Refusal) and "Invalid time format" in str(refused)
    await close_tools(tools)
