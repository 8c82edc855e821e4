"""A hostile MCP server costs its own calls: the event loop goes on, and memory stays bounded."""

import io
import json
import sys
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rag_r1.protocols import Failure
from rag_r1.tools import make_tool
from rag_r1.tools.mcp.server_output import copy_stderr
from rag_r1.tools.mcp.tool import has_mcp

pytestmark = [
    pytest.mark.slow,  # importing mcp takes seconds
    pytest.mark.timeout(300),  # a check on the event loop would never end
    pytest.mark.skipif(not has_mcp(), reason="mcp 2 is not installed: pip install 'rag-r1[mcp]'"),
]
SERVER = Path(__file__).parents[1] / "hostile_mcp_server.py"
OK = "ok"


async def answer(options, arguments=None):
    """What a call shows, or why it has failed."""
    tool = make_tool("x", {"tool": "mcp", "timeout_s": 60.0, **options})
    (matches,) = await tool.call([arguments or {"x": "a"}])
    await tool.close()
    return matches.detail if isinstance(matches, Failure) else matches[0].contents


def stdio(mode):
    return {"command": [sys.executable, "-S", str(SERVER), mode]}


@pytest.mark.parametrize(
    ("mode", "arguments"),
    [
        *(
            (mode, {"x": "a"})
            for mode in ("allOf", "anyOf", "oneOf", "not", "dependent", "itself", "dynamic")
        ),
        ("unique", {"x": [{"a": i} for i in range(20_000)]}),
        ("pattern", {"x": "a" * 40 + "!"}),
        ("names", {"a" * 40 + "!": 1}),
    ],
)
async def test_a_schema_that_cannot_be_checked_is_left_to_the_server(mode, arguments):
    assert await answer(stdio(mode), arguments) == OK


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("properties", "not a JSON schema: it has more than 256 KiB"),
        ("wrong", "the server's schema of 'x' is not a JSON schema: 'figure' is not valid"),
        ("tools", "the server sent too much: a message has more than 50,000 values"),
        ("some tools", "it lists more than 1,000 tools"),
        ("pages", "its list of tools has more than 50 pages"),
        ("blocks", "a message has more than 50,000 values"),
        ("structure", "a message has more than 50,000 values"),
        ("nested", "a message is nested more than 64 deep"),
        ("no line", "a message has more than 8 MiB"),
        *(
            (mode, "more than 10,000 messages or 64 MiB for one request")
            for mode in ("notifications", "requests", "answers", "noise", "empty lines")
        ),
    ],
)
async def test_what_is_too_much_is_a_failure_that_says_so(mode, why):
    assert why in await answer(stdio(mode))


async def test_structure_inside_of_a_text_counts_for_nothing():
    assert (await answer(stdio("text"))).startswith('[{"\\,[{')


async def test_the_schema_of_a_result_is_not_checked_here():
    assert json.loads(await answer(stdio("results"))) == {"s": "a" * 40 + "!"}


BLOCK = '{"type":"text","text":""}'
BLOCKS = '"content":[' + ",".join([BLOCK] * 20_000) + "]"
HALVES = '"content":[' + ",".join([BLOCK] * 10_000) + ",\n" + ",".join([BLOCK] * 10_000) + "]"


def over_http(body, kind="application/json", end="\n", **headers):
    """A server that answers calls so. `body`: with N for the number of the request."""

    async def handle(request):
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        if "id" not in message:
            return web.Response(status=202)
        number = json.dumps(message["id"])
        if message["method"] == "tools/call":
            return web.Response(
                body=body.replace("N", number).replace("\n", end).encode(),
                headers={"Content-Type": kind, **headers},
            )
        results = {
            "initialize": {
                "protocolVersion": message.get("params", {}).get("protocolVersion"),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "hostile", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "x", "inputSchema": {"type": "object"}}]},
        }
        if message["method"] not in results:
            error = {"code": -32601, "message": "no"}
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return web.json_response(
            {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}
        )

    app = web.Application()
    app.router.add_route("*", "/mcp", handle)
    return TestServer(app)


def event(result):
    lines = f'{{"jsonrpc":"2.0","id":N,"result":{{{result}}}}}'.split("\n")
    return "event: message\n" + "".join(f"data: {line}\n" for line in lines) + "\n"


EVENTS = "text/event-stream"
NOTE = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'


@pytest.mark.parametrize(
    ("body", "kind", "end", "headers", "why"),
    [
        (f'{{"jsonrpc":"2.0","id":N,"result":{{{BLOCKS}}}}}', "application/json", "\n", {}, "50,000 values"),
        (event(BLOCKS), EVENTS, "\n", {}, "50,000 values"),
        (event(BLOCKS), EVENTS, "\r\n", {}, "50,000 values"),
        (event(BLOCKS), EVENTS, "\r", {}, "50,000 values"),
        (event(HALVES), EVENTS, "\n", {}, "50,000 values"),
        (event(HALVES), EVENTS, "\r\n", {}, "50,000 values"),
        ("\ufeff" + event(BLOCKS).removeprefix("event: message\n"), EVENTS, "\n", {}, "50,000 values"),
        (f"data: {NOTE}\n\n" * 10_001, EVENTS, "\n", {}, "10,000 messages"),
        (": " + "x" * 5000 + "\n", EVENTS, "\n", {}, "beside its data"),
        ("data: " + "x" * (9 << 20), EVENTS, "\n", {}, "8 MiB"),
        ("x" * (9 << 20), "application/json", "\n", {}, "8 MiB"),
        ("[" * 100_000, "application/json", "\n", {}, "values"),
        ("{}", "application/json", "\n", {"Content-Encoding": "gzip"}, ""),
    ],
)
async def test_the_same_holds_over_http(body, kind, end, headers, why):
    async with over_http(body, kind, end, **headers) as server:
        reply = await answer({"url": str(server.make_url("/mcp")), "timeout_s": 20.0})
    assert why in reply and reply != OK


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_honest_events_are_read_whatever_ends_their_lines(end):
    body = f"data: {NOTE}\n\n" + event('"content":[{"type":"text",\n"text":"ok"}]')
    async with over_http(body, EVENTS, end) as server:
        assert await answer({"url": str(server.make_url("/mcp"))}) == OK


async def test_a_server_that_does_not_list_its_tools_is_given_up():
    why = "the server did not list its tools within 2 s"
    assert why in await answer({**stdio("no list"), "timeout_s": 2.0})


async def test_what_a_server_says_besides_its_answers_cannot_control_the_terminal(capfd, caplog):
    assert await answer(stdio("words")) == OK
    shown = capfd.readouterr().err
    assert " green " in shown and "last words" in shown
    assert not any(character in shown for character in "\x1b\x07\u202e")
    logged = [one for one in caplog.records if one.name == "client"]
    assert 0 < len(logged) <= 100 and not any(one.exc_info for one in logged)


async def test_the_stderr_of_a_server_is_read_on_when_ours_cannot_be_written(monkeypatch):
    import anyio

    class Full(io.StringIO):
        encoding = "utf-8"

        def write(self, text):
            raise OSError(28, "No space left on device")

    class Words(list):
        async def receive(self):
            if not self:
                raise anyio.EndOfStream
            return self.pop(0)

    words, end = Words([b"one\n", b"two\n"]), anyio.Event()
    monkeypatch.setattr(sys, "__stderr__", Full())
    await copy_stderr(words, end)
    assert not words and end.is_set()


async def test_of_a_servers_stderr_a_part_is_shown(capfd):
    assert await answer(stdio("many words")) == OK
    shown = capfd.readouterr().err
    assert "over 1 MiB: the rest is not shown" in shown and len(shown) < 1_300_000
