"""`rag-r1 mcp`: the search and the agent as tools of any MCP client, and what other servers offer."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from rag_r1.http_server import request_body
from rag_r1.http_server.idle_timeout import IdleTimeoutProtocol
from rag_r1.http_server.listening import bind_socket
from rag_r1.runs.errors import RunError
from rag_r1.serving.mcp import command as mcp_command
from rag_r1.serving.mcp import listing
from rag_r1.tools import make_tool
from rag_r1.tools.mcp.tool import has_mcp
from tests.fakes.json_server import JsonStub
from tests.fakes.silent_server import silent_server
from tests.fakes.web_page import WebPage
from tests.serving.process_tree import descendants, is_there

pytestmark = [
    pytest.mark.slow,  # importing mcp takes seconds
    pytest.mark.skipif(not has_mcp(), reason="mcp 2 is not installed: pip install 'rag-r1[mcp]'"),
]
SMALL = Path(__file__).parents[2] / "fakes" / "small_mcp_server.py"
PASSAGE = {"document": {"id": "7", "contents": '"Ulm"\nUlm lies on the Danube.'}, "score": 2.5}
TURNS = ["<think>a</think><search>Ulm river</search>", "<think>b</think><answer>the Danube</answer>"]


def answer(request):
    """A retrieval server and a model behind one address."""
    if request.path == "/ready":
        return {"backend": "dense", "separator": " [SEP] ", "max_length": 512, "query_prefix": ""}
    if request.path == "/retrieve":
        if request.body["queries"] == ["broken"]:
            return 500, "{}"
        return {"result": [[PASSAGE] for _ in request.body["queries"]]}
    if request.path == "/v1/models":
        return 404, "{}"
    messages = request.body["messages"]
    if "refused" in messages[0]["content"]:
        return 401, '{"error": {"message": "no such key"}}'
    said = TURNS[sum(message["role"] == "assistant" for message in messages)]
    return {"choices": [{"message": {"content": said}, "finish_reason": "stop"}]}


@pytest.fixture(scope="module")
def stub():
    with JsonStub(answer) as server:
        yield server


def arguments(stub, *more):
    flags = ["--retriever-url", stub.url, "--base-url", f"{stub.url}/v1", "--model", "m", "--engine", "chat"]
    quick = ["rag_r1.retriever.retries=0", "rag_r1.retriever.topk=1"]
    return mcp_command.read_arguments(mcp_command.McpArguments, [*flags, *more, *quick], description="")


def open_server_of(stub):
    """The server, as the command makes it, while the block runs."""
    return mcp_command.open_server(arguments(stub))


async def test_a_client_searches_and_asks_the_agent(stub):
    from mcp.client import Client

    async with open_server_of(stub) as server, Client(server) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        search_result = await client.call_tool("search", {"query": "Ulm"})
        reply = await client.call_tool("ask", {"question": "On which river does Ulm lie?"})
    assert set(tools) == {"search", "ask"} and tools["ask"].input_schema["required"] == ["question"]
    passage = {"id": "7", "title": "Ulm", "text": "Ulm lies on the Danube.", "score": 2.5}
    assert search_result.structured_content == {"passages": [passage]}
    assert reply.structured_content == {
        "answer": "the Danube",
        "status": "answered",
        "searches": ["Ulm river"],
        "sources": [passage],
    }


async def test_a_failure_is_an_error_of_its_call_and_the_server_goes_on(stub):
    from mcp.client import Client

    async with open_server_of(stub) as server, Client(server) as client:
        broken = await client.call_tool("search", {"query": "broken"})
        refused = await client.call_tool("ask", {"question": "refused?"})
        long = await client.call_tool("ask", {"question": "x" * 5000})
        again = await client.call_tool("ask", {"question": "Ulm?"})
    assert broken.is_error and f"the search at {stub.url} does not work (HTTP 500)" in broken.content[0].text
    assert refused.is_error and "engine_failure" in refused.content[0].text
    assert long.is_error and not again.is_error


async def test_a_call_while_nobody_listens_at_the_retrieval_server_says_how_to_start_one(stub, monkeypatch):
    from mcp.client import Client

    monkeypatch.setenv("RETRIEVAL_TOKEN", "SECRET")
    with JsonStub(answer) as search_stub:
        args = arguments(stub, "rag_r1.failures.mask=[retriever]")
        args = args.model_copy(update={"retriever_url": search_stub.url})
        opened = mcp_command.open_server(args)
        server = await opened.__aenter__()
    port = search_stub.url.rpartition(":")[2]
    remedy = f"start one with `rag-r1 index serve --index DIR --port {port}`, or correct --retriever-url"
    async with Client(server) as client:
        results = [
            await client.call_tool("search", {"query": "Ulm"}),
            await client.call_tool("ask", {"question": "On which river does Ulm lie?"}),
        ]
    await opened.__aexit__(None, None, None)
    for result in results:
        said = result.content[0].text
        assert result.is_error and "SECRET" not in said
        assert f"no retrieval server answers at {search_stub.url} (connection refused): {remedy}" in said


async def test_a_retriever_that_reads_the_question_is_sent_the_query_as_the_question_too(stub):
    from mcp.client import Client

    args = arguments(stub, "rag_r1.retriever.agentic_input=true")
    async with mcp_command.open_server(args) as server, Client(server) as client:
        result = await client.call_tool("search", {"query": "its river"})
    assert not result.is_error
    assert stub.asked[-1].body["queries"] == ["its river [SEP] its river"]


async def test_a_search_whose_separator_is_unknown_is_an_error_and_nothing_is_sent():
    from mcp.client import Client

    with JsonStub(
        lambda request: (404, "{}") if request.path == "/ready" else answer(request)
    ) as server_stub:
        words = ["rag_r1.retriever.agentic_input=true", "rag_r1.retriever.retries=0"]
        words = ["--retriever-url", server_stub.url, *words]
        args = mcp_command.read_arguments(mcp_command.McpArguments, words, description="")
        async with mcp_command.open_server(args) as server, Client(server) as client:
            result = await client.call_tool("search", {"query": "its river"})
        assert result.is_error
        assert {request.path for request in server_stub.asked} == {"/ready"}


async def test_passages_of_a_server_that_gives_no_ids_are_all_among_the_sources():
    from mcp.client import Client

    from rag_r1.agent import Trajectory, Turn
    from rag_r1.protocols import Document
    from rag_r1.serving.mcp.server import make_server

    async def play(question):
        shown = [Document("", text) for text in ("one", "two", "one")]
        turns = [Turn.searched("<search> x </search>", ["x"], [shown])]
        return Trajectory("1", question, "p", turns=turns, answer="yes", status="answered")

    async with Client(make_server(None, play, retriever_url="")) as client:
        reply = await client.call_tool("ask", {"question": "x"})
    assert [source["text"] for source in reply.structured_content["sources"]] == ["one", "two"]


def test_a_passages_title_loses_the_quotation_marks_around_it_and_no_others():
    from rag_r1.protocols import Document
    from rag_r1.serving.mcp.server import Passage

    titles = {'"Ulm"': "Ulm", 'The film "Jaws"': 'The film "Jaws"'}
    for line, title in titles.items():
        assert Passage.of(Document("1", f"{line}\nA text.")).title == title


async def test_beyond_the_questions_that_may_wait_a_question_is_refused():
    from mcp.client import Client

    from rag_r1.agent import Trajectory
    from rag_r1.serving.mcp.server import make_server

    gate, started = asyncio.Event(), []

    async def play(question):
        started.append(question)
        await gate.wait()
        return Trajectory("1", question, "p", answer="yes", status="answered")

    async with Client(make_server(None, play, retriever_url="", concurrency=2)) as client:
        calls = [asyncio.ensure_future(client.call_tool("ask", {"question": f"{n}"})) for n in range(5)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert len(started) == 2
        gate.set()
        results = await asyncio.gather(*calls)
    assert sorted(result.is_error for result in results) == [False] * 4 + [True]


async def test_a_request_that_would_become_a_million_objects_is_refused_before_it_does(stub):
    import httpx

    from rag_r1.serving.mcp.server import http_app

    call = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search","arguments":{"query":X}}}'
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    bodies = {
        "values": "[" + "[]," * 100_000 + "1]",
        "nested": "[" * 1000 + "]" * 1000,
        "bytes": '"' + "x" * (2 << 20) + '"',
        "honest": '"[{,"',
    }
    async with open_server_of(stub) as server:
        transport = httpx.ASGITransport(http_app(server, None))
        url = "http://127.0.0.1:8123/mcp"
        async with server.session_manager.run(), httpx.AsyncClient(transport=transport) as client:
            replies = {
                name: (await client.post(url, content=call.replace("X", body), headers=headers))
                for name, body in bodies.items()
            }
    assert {name: answer.status_code for name, answer in replies.items()} == {
        "values": 413,
        "nested": 413,
        "bytes": 413,
        "honest": 400,  # of no session
    }
    assert "nested more than 64 deep" in replies["nested"].text and "session" in replies["honest"].text


async def test_over_http_it_wants_the_token_and_a_host_of_this_machine(stub, monkeypatch, capsys):
    import aiohttp
    import uvicorn

    from rag_r1.serving.mcp.server import http_app

    monkeypatch.setenv("RIGHT", "SECRET")
    monkeypatch.setenv("WRONG", "SECRETS")
    async with open_server_of(stub) as server:
        http = uvicorn.Server(uvicorn.Config(http_app(server, "SECRET"), port=0, log_level="error"))
        serving = asyncio.ensure_future(http.serve())
        while not http.started:
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{http.servers[0].sockets[0].getsockname()[1]}/mcp"
        replies = {}
        for name in ("RIGHT", "WRONG"):
            entry = {"tool": "mcp", "url": url, "call": "search", "token_env": name, "timeout_s": 10}
            tool = make_tool("search_it", entry)
            (replies[name],) = await tool.call([{"query": "Ulm"}])
            await tool.close()
            listed = await asyncio.to_thread(mcp_command.main, ["--tools", "--token-env", name, url])
            assert listed == (0 if name == "RIGHT" else 1)
        entries = yaml.safe_load(capsys.readouterr().out)["rag_r1"]["tools"]
        assert entries["search"]["token_env"] == "RIGHT" and "SECRET" not in str(entries)
        # The name of the scheme is accepted in any case, as by the other servers.
        headers = {"Authorization": "bearer SECRET", "Host": "evil.org"}
        headers["Accept"] = "application/json, text/event-stream"
        async with aiohttp.ClientSession(headers=headers) as client:
            async with client.post(url, json={}) as response:
                status = response.status
        http.should_exit = True
        await serving
    assert "Ulm lies on the Danube." in replies["RIGHT"][0].contents
    assert "cannot be reached" in replies["WRONG"].detail and "SECRET" not in replies["WRONG"].detail
    assert status == 421


async def test_over_http_a_token_that_no_client_can_send_is_an_error(stub, monkeypatch):
    monkeypatch.setenv(mcp_command.TOKEN_VARIABLE, "two words")
    with bind_socket("127.0.0.1", 0) as taken:
        async with open_server_of(stub) as server:
            with pytest.raises(RunError, match=mcp_command.TOKEN_VARIABLE):
                await mcp_command._serve_http(server, taken.getsockname()[1])


@pytest.fixture
async def over_http(stub, monkeypatch):
    """The port of `rag-r1 mcp --http`, with time limits of parts of a second."""
    monkeypatch.setattr(IdleTimeoutProtocol, "check_s", 0.2)
    monkeypatch.setattr(request_body, "BODY_TIMEOUT_S", 0.5)
    with bind_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    async with open_server_of(stub) as server:
        serving = asyncio.ensure_future(mcp_command._serve_http(server, port))
        while True:
            try:
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                break
            except OSError:
                await asyncio.sleep(0.02)
        yield port
        serving.cancel()
        await asyncio.wait([serving])


HEAD = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
ENOUGH = b"Accept: application/json, text/event-stream\r\n"


async def test_over_http_requests_that_never_become_whole_are_ended(over_http):
    async def replies(*sent: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", over_http)
        for part in sent:
            writer.write(part)
            await writer.drain()
        try:
            return await asyncio.wait_for(reader.read(), 20)
        except ConnectionError:
            return b"reset"
        finally:
            writer.close()

    halves = [replies(b""), replies(b"POST"), replies(HEAD), replies(HEAD, b"X-More: ")] * 50
    assert set(await asyncio.gather(*halves)) == {b""}
    slow = await replies(HEAD, ENOUGH, b"Content-Length: 100\r\n\r\n{")
    assert slow.startswith(b"HTTP/1.1 408") and b'"timeout"' in slow
    large = await replies(HEAD, ENOUGH, b"Content-Length: 3000000\r\n\r\n", b" " * 3_000_000)
    assert large.startswith(b"HTTP/1.1 413") or large == b"reset"
    chunked = await replies(HEAD, ENOUGH, b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 3)
    assert chunked.startswith(b"HTTP/1.1 408")
    heads = await replies(b"GET /mcp HTTP/1.1\r\n", b"X-Much: " + b"x" * (1 << 20))
    assert heads.startswith(b"HTTP/1.1 400") or heads == b"reset"


MALFORMED = {
    "nothing": b"",
    "no JSON": b"{",
    "no object": b"[]",
    "a number": b"3",
    "deep": b"[" * 100_000,
    "no UTF-8": b"\xff\xfe",
    "half a character": b'{"jsonrpc": "2.0", "id": 1, "method": "\\ud800"}',
    "no method": b'{"jsonrpc": "2.0", "id": 1}',
    "another version": b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}',
    "no session": b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}',
    "an unknown method": b'{"jsonrpc": "2.0", "id": 1, "method": "no/such", "params": {}}',
    "an id that is no id": b'{"jsonrpc": "2.0", "id": {"a": []}, "method": "ping"}',
    "a huge number": b'{"jsonrpc": "2.0", "id": ' + b"9" * 5000 + b', "method": "ping"}',
    "a batch": b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]' * 2,
}


async def test_over_http_malformed_messages_are_refused_and_the_server_goes_on(over_http):
    import aiohttp

    url = f"http://127.0.0.1:{over_http}/mcp"
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as client:
        for name, body in MALFORMED.items():
            for more in ({}, {"Mcp-Session-Id": "no-such"}):
                async with client.post(url, data=body, headers=more) as response:
                    said = await response.text()
                    assert 400 <= response.status < 500 or "error" in said, (name, response.status, said)
                    assert "Traceback" not in said
    tool = make_tool("search_it", {"tool": "mcp", "url": url, "call": "search", "timeout_s": 10})
    (result,) = await tool.call([{"query": "Ulm"}])
    await tool.close()
    assert "Ulm lies on the Danube." in result[0].contents


async def test_over_http_a_client_that_waits_keeps_its_connection(over_http, monkeypatch):
    """A session's stream is open for as long as the client likes, and its calls are answered."""
    entry = {"tool": "mcp", "url": f"http://127.0.0.1:{over_http}/mcp", "call": "search", "timeout_s": 10}
    tool = make_tool("search_it", entry)
    (first,) = await tool.call([{"query": "Ulm"}])
    await asyncio.sleep(1)  # several looks at each connection
    (second,) = await tool.call([{"query": "Ulm"}])
    await tool.close()
    assert first == second and "Ulm lies on the Danube." in first[0].contents


def test_a_server_that_hangs_is_named_after_one_short_wait(capsys, monkeypatch):
    monkeypatch.setattr(listing, "FIRST_ANSWER_S", 0.5)
    with silent_server() as url:
        assert mcp_command.main(["--tools", url]) == 1
    said = capsys.readouterr().err
    assert f"no MCP server answers at {url} (it did not open a connection within 0.5 s)" in said


@pytest.mark.parametrize(
    ("status", "said"), [(401, "--token-env NAME"), (418, "no MCP server answers at URL (HTTP 418: ")]
)
def test_the_status_of_a_refusal_is_named(status, said, capsys):
    with JsonStub(lambda asked: (status, "<p>no</p>")) as stub:
        assert mcp_command.main(["--tools", stub.url]) == 1
    assert said.replace("URL", stub.url) in capsys.readouterr().err


def test_json_in_place_of_an_mcp_server_is_said_in_one_sentence(capsys):
    with JsonStub(lambda asked: {"hello": "world"}) as stub:
        assert mcp_command.main(["--tools", stub.url]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"no MCP server answers at {stub.url} (it answers with JSON that is not MCP's)" in line


def test_a_port_that_is_taken_is_named_with_its_flag_and_the_token_with_its_variable(capsys, monkeypatch):
    monkeypatch.setenv(mcp_command.TOKEN_VARIABLE, "two words")
    with bind_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert mcp_command.main(["--http", str(port)]) == 1
    output = capsys.readouterr().err
    assert mcp_command.TOKEN_VARIABLE in output
    assert f"port {port}" in output and "choose another --http" in output and "MCP at" not in output


def test_a_web_page_in_place_of_the_search_is_an_error_and_a_search_that_is_away_a_warning(
    capsys, monkeypatch
):
    started = []
    monkeypatch.setattr(mcp_command, "serve", lambda args: asyncio.sleep(0, started.append(args)))
    with WebPage() as page:
        assert mcp_command.main(["--retriever-url", page.url]) == 1
    assert f"error: the search at {page.url} " in capsys.readouterr().err and started == []
    assert mcp_command.main(["--retriever-url", "http://127.0.0.1:9"]) == 0
    assert "warning: no retrieval server answers" in capsys.readouterr().err and len(started) == 1


def test_of_a_server_only_the_name_of_the_model_is_missing(capsys):
    with JsonStub(lambda asked: {"data": [{"id": "good"}]}) as stub, pytest.raises(SystemExit):
        mcp_command.main(["--retriever-url", stub.url, "--base-url", f"{stub.url}/v1"])
    message = capsys.readouterr().err
    assert "--base-url and --model belong together" in message and "good" not in message


HANGS = "<think>a</think><search>[hang]: Ulm</search>"
CALLS = [
    (
        "initialize",
        {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    ),
    ("tools/call", {"name": "ask", "arguments": {"question": "Ulm?"}}),
]


def call_over_stdio(process):
    for number, (method, params) in enumerate(CALLS):
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        if method == "initialize":
            process.stdout.readline()
            process.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')


def call_over_http(port):
    import httpx

    url = f"http://127.0.0.1:{port}/mcp"
    more = {"Accept": "application/json, text/event-stream"}
    for number, (method, params) in enumerate(CALLS):
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        with httpx.stream("POST", url, json=message, headers=more, timeout=120, trust_env=False) as answer:
            if method == "initialize":
                answer.read()
                more["Mcp-Session-Id"] = answer.headers["Mcp-Session-Id"]
                message = {"jsonrpc": "2.0", "method": "notifications/initialized"}
                httpx.post(url, json=message, headers=more, timeout=120, trust_env=False)
            else:
                answer.read()  # until the server is killed


@pytest.mark.full  # starts the command, which imports everything anew
@pytest.mark.skipif(sys.platform != "linux", reason="left out: reads /proc, which only Linux has")
@pytest.mark.parametrize("http", [False, True])
def test_a_server_that_a_killed_command_has_started_ends_with_it(http):
    def said(request):
        if not request.path.endswith("completions"):
            return answer(request)
        return {"choices": [{"message": {"content": HANGS}, "finish_reason": "stop"}]}

    with bind_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    hangs = {
        "tool": "mcp",
        "command": [sys.executable, "-S", str(SMALL)],
        "call": "hang",
        "description": "x",
        "parameters": {"text": {"type": "string"}},
    }
    children = {}
    with JsonStub(said) as model:
        words = ["--retriever-url", model.url, "--base-url", f"{model.url}/v1", "--model", "m"]
        words += ["--engine", "chat", "--protocol", "agentic_rag_en"]
        words += [f"rag_r1.tools.hang={json.dumps(hangs)}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "rag_r1.cli", "mcp", *words, *(["--http", str(port)] if http else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            if http:
                assert b"MCP at" in process.stderr.readline()
                threading.Thread(target=lambda: suppressed(call_over_http, port), daemon=True).start()
            else:
                call_over_stdio(process)
            while not (children := descendants(process.pid)):
                assert process.poll() is None
                time.sleep(0.02)
            time.sleep(0.5)  # its server reads, and would see the end of its input, too
            children |= descendants(process.pid)
            process.kill()
            process.wait()
            while any(is_there(*child) for child in children.items()):
                time.sleep(0.02)
        finally:
            process.kill()
            process.communicate()


def suppressed(call, *arguments):
    with suppress(Exception):  # the connection ends with the server
        call(*arguments)


@pytest.mark.full  # starts the command, which imports everything anew
async def test_the_command_serves_over_stdio_what_our_own_client_can_use(stub):
    command = [sys.executable, "-m", "rag_r1.cli", "mcp", "--retriever-url", stub.url]
    tool = make_tool("wiki", {"tool": "mcp", "command": command, "call": "search", "env": ["PYTHONPATH"]})
    ((result,),) = await tool.call([{"query": "Ulm"}])
    await tool.close()
    assert "Ulm lies on the Danube." in result.contents


def test_what_a_server_offers_is_printed_as_entries_that_can_be_used(capsys):
    assert mcp_command.main(["--tools", sys.executable, "-S", str(SMALL)]) == 0
    printed, note = capsys.readouterr()
    assert "60 s at most" in note
    assert "&" not in printed, "each entry can be copied by itself"
    entries = yaml.safe_load(printed)["rag_r1"]["tools"]
    assert entries["echo"]["description"] == "Says the text again."
    echo = make_tool("echo", entries["echo"])
    assert echo.fault({"txt": "a"}) and not echo.fault({"text": "a"})


def test_a_servers_words_cannot_control_the_terminal_and_are_still_what_they_were():
    words = {"a\u202eb": {"description": "x\x1b[2J\x07\u200b\u2028 ü"}}
    printed = listing._as_yaml(words)
    assert printed.isascii() and yaml.safe_load(printed) == words
    assert listing._as_yaml({"a": "Grüße, 北京\n- b"}).count("北京") == 1


def test_what_is_missing_is_said(capsys, monkeypatch):
    assert mcp_command.main(["--tools", "no-such-command"]) == 1
    assert "`no-such-command` does not start an MCP server (FileNotFoundError" in capsys.readouterr().err
    assert mcp_command.main(["--tools", sys.executable, "-S", str(SMALL), "no-list"]) == 1
    assert "error: the server does not list its tools: no such method" in capsys.readouterr().err
    monkeypatch.setattr("rag_r1.tools.mcp.connections._MAX_TOOLS", 3)
    assert mcp_command.main(["--tools", sys.executable, "-S", str(SMALL)]) == 1
    assert "error: the server does not list its tools: it lists more than 3 tools" in capsys.readouterr().err
    url = "http://127.0.0.1:1/mcp"
    for words, message in (
        ([], "rag-r1 mcp --tools needs the address"),
        (["--token-env"], "rag-r1 mcp --tools needs the address"),
        (["--token-env", "UNSET_TOKEN", url], "warning: --token-env UNSET_TOKEN: there is no"),
        (["--token-env", "X", "a", "command"], "rag-r1 mcp --tools needs the address"),
        (["--token", "X", url], "unknown flag --token: rag-r1 mcp --tools [--token-env NAME] URL"),
        (["--help"], "unknown flag --help: rag-r1 mcp --tools"),
        (["--token-env=X", "--deep", url], "unknown flag --deep"),
        ([url, "--token-env", "X"], "--token-env comes before the address: rag-r1 mcp --tools [--token-env"),
        ([url, "--token-env=X"], "--token-env comes before the address"),
        ([url, url], "nothing may follow the address"),
        (["--token-env=X", "a", "command"], "needs the address of an MCP server, after --token-env NAME"),
        (["--token-env=X", url], f"no MCP server answers at {url} (ConnectError"),
    ):
        assert mcp_command.main(["--tools", *words]) == 1
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        mcp_command.main(["--base-url", "http://127.0.0.1:1/v1"])
    assert "--base-url and --model belong together" in capsys.readouterr().err


def test_of_a_web_page_that_is_no_mcp_server_only_our_sentence_is_printed(capsys, caplog):
    with WebPage() as page:
        assert mcp_command.main(["--tools", page.url]) == 1
    [sentence] = capsys.readouterr().err.splitlines()
    assert f"no MCP server answers at {page.url}" in sentence and caplog.records == []
