"""`rag-r1 chat` with a running server."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from contextlib import suppress

import pytest
from aiohttp import web

from rag_r1.serving.command import main as serve_main
from rag_r1.serving.terminal import client
from rag_r1.serving.terminal.chat import TerminalChat, plain_text
from rag_r1.serving.terminal.client import ChatError, stream_answer
from rag_r1.serving.terminal.command import main
from rag_r1.serving.wire import MAX_MESSAGES
from tests.fakes.json_server import JsonStub
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.silent_server import silent_server
from tests.fakes.web_page import WebPage
from tests.serving.running_chat import GOLD, PASSAGES, QUESTION, arguments, chat_server, policy_of

CONTROLS = "\x1b[2J\x07\x9b31m"


@pytest.fixture(scope="module")
def policy():
    hostile = ("p3", f'"Hostile {CONTROLS}"\nNot born{CONTROLS}.')
    with policy_of(passages=(*PASSAGES, hostile), thought="I need to search.") as policy:
        yield policy


@pytest.fixture(scope="module")
def chat(policy, tmp_path_factory):
    with chat_server(arguments(policy.url, tmp_path_factory.mktemp("serve"))) as chat:
        yield chat


def terminal(url: str, *lines: str) -> tuple[TerminalChat, io.StringIO]:
    """A terminal into which these lines are typed, and what it shows."""
    typed, out = iter(lines), io.StringIO()

    def read() -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    return TerminalChat(url, None, out, read), out


def test_a_question_shows_its_search_its_passages_and_the_answer(chat):
    session, out = terminal(chat.url)
    assert session.chat([QUESTION]) == 0
    lines = out.getvalue().splitlines()
    assert lines[0] == "I need to search." and lines[1].startswith(f"search: {QUESTION}")
    assert "Mara Torval: The painter Mara Torval was born in Karlen Ford in 1907." in lines[2]
    assert lines[-4:] == ["I need to search.", GOLD, "the model's words occur in:", "  * Mara Torval"]


def test_what_comes_from_documents_cannot_control_the_terminal(chat):
    session, out = terminal(chat.url)
    session.chat([QUESTION])
    assert "Hostile ?[2J??31m" in out.getvalue()
    assert all(c.isprintable() or c == "\n" for c in out.getvalue())
    assert plain_text("a\tb\r\u202ec\n") == "a b??c\n" and plain_text("5\u00a0km\u3000") == "5 km "


def test_a_conversation_goes_on_until_it_is_begun_anew(chat, policy):
    session, _ = terminal(chat.url, QUESTION, QUESTION, "", "/new", QUESTION)
    policy.bodies.clear()
    assert session.chat() == 0
    prompts = [policy.tokenizer.decode(body["prompt"]) for body in policy.bodies[::2]]
    assert [f"Answer: {GOLD}" in prompt for prompt in prompts] == [False, True, False]


def test_an_input_that_is_not_text_is_an_error():
    typed = io.TextIOWrapper(io.BytesIO("Wer gründete es?".encode("latin-1")), "utf-8")
    session = TerminalChat("http://127.0.0.1:9", None, io.StringIO(), typed.readline)
    with pytest.raises(ChatError, match="the input is not utf-8 text"):
        session.chat()


def test_ctrl_c_stops_an_answer_and_not_the_chat(chat, monkeypatch):
    session, out = terminal(chat.url)
    show = session._show

    def interrupted(kind, data):
        if kind == "passages":
            raise KeyboardInterrupt
        show(kind, data)

    monkeypatch.setattr(session, "_show", interrupted)
    assert session.answer(QUESTION) is False and "stopped" in out.getvalue()
    assert session.messages == []


def test_a_server_that_is_away_is_an_error_with_its_address(capsys):
    assert main(["--url", "http://127.0.0.1:9", "--ask", QUESTION]) == 1
    assert "no chat answers at http://127.0.0.1:9 (connection refused)" in capsys.readouterr().err


def test_an_address_without_tls_and_an_override_are_named_with_their_remedy(capsys):
    with WebPage() as page:
        assert main(["--url", page.url.replace("http:", "https:")]) == 1
        assert f"--url to {page.url}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--url", "http://127.0.0.1:9", "rag_r1.agent.max_turns=3"])
    assert "leave out rag_r1.agent.max_turns" in capsys.readouterr().err


def test_a_refusal_as_a_web_page_is_about_the_token(capsys):
    with WebPage() as page:
        page.status = 401
        assert main(["--url", page.url]) == 1
    assert "CHAT_TOKEN" in capsys.readouterr().err


def test_an_unknown_command_is_not_asked_as_a_question(capsys):
    session, out = terminal("http://127.0.0.1:9", "/nope")
    assert session.chat() == 0
    assert "/nope" in (said := capsys.readouterr().err) and "/new" in said and session.messages == []


@pytest.mark.parametrize(("status", "kind"), [(200, "text/html"), (404, "text/plain")])
def test_a_server_that_is_no_chat_is_an_error_with_its_address_and_flag(capsys, status, kind):
    with OpenAIServer(lambda body: web.Response(text="<p>x</p>", status=status, content_type=kind)) as server:
        assert main(["--url", server.url, "--ask", QUESTION]) == 1
    said = capsys.readouterr()
    assert server.url in said.err and "correct --url" in said.err and said.out == ""


def test_a_web_page_in_place_of_the_chat_is_named_before_anything_is_typed(capsys):
    with WebPage() as page:
        assert main(["--url", page.url]) == 1
        assert page.asked == ["/health"]
    assert (
        f"{page.url} answers with a web page, so it is not a chat: correct --url" in capsys.readouterr().err
    )


def test_a_server_without_models_is_named_before_anything_is_typed(capsys):
    with JsonStub(lambda asked: (404, "{}") if asked.path == "/v1/models" else {"status": "ok"}) as stub:
        assert main(["--url", stub.url, "--check-only"]) == 1
    assert f"{stub.url} answers with HTTP 404 to /v1/models" in capsys.readouterr().err


def test_a_server_that_hangs_is_an_error_before_the_first_question(capsys, monkeypatch):
    monkeypatch.setattr(client, "_HEALTH_S", 0.2)
    with silent_server() as url:
        assert main(["--url", url]) == 1
    said = capsys.readouterr()
    assert f"error: no chat answers at {url} (no answer within 0.2 s)" in said.err and said.out == ""


@pytest.mark.parametrize("answer", [(500, "{}"), {"hello": "world"}])
def test_what_answers_otherwise_is_told_with_its_address_and_the_remedy(answer, capsys):
    with JsonStub(lambda asked: answer) as stub:
        assert main(["--url", stub.url, "--ask", QUESTION]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and f"{stub.url} " in said and "see its log, or correct --url" in said


def test_an_error_begins_a_line_and_leaves_the_answer_alone(capsys):
    reasoning = {"choices": [{"delta": {"reasoning_content": "I think"}}]}
    with odd(b"data: " + json.dumps(reasoning).encode() + b"\n\n") as server:
        session, out = terminal(server.url)
        assert session.chat([QUESTION]) == 1
    assert out.getvalue() == "I think\n"
    assert capsys.readouterr().err == "error: the connection ended before the answer\n"


def odd(answer: bytes, status: int = 200) -> OpenAIServer:
    """Answers every question with these bytes."""
    return OpenAIServer(
        lambda body: web.Response(body=answer, status=status, content_type="text/event-stream")
    )


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"data: {\n\n",
        b'data: {"choices": [{"delta": 3}]}\n\n',
        b'data: {"rag_r1": 1, "choices": []}\n\ndata: [DONE]\n\n',
        b'data: {"rag_r1": {"event": "answer"}, "choices": []}\n\ndata: [DONE]\n\n',
        b"data: " + b"[" * 5000 + b"\n\n",
        b'data: {"error": {"message": "away"}}\n\n',
    ],
)
def test_an_answer_of_another_form_is_an_error(answer):
    with odd(answer) as server, pytest.raises(ChatError):
        list(stream_answer(server.url, [{"role": "user", "content": "x"}]))


@pytest.mark.parametrize(
    "event",
    [
        {"event": "passages"},
        {"event": "passages", "calls": [{"tool": "search", "arguments": 3}]},
        {"event": "citations", "passages": [3]},
        {"event": "queued"},
        {"event": "ended"},
        {
            "event": "passages",
            "calls": [{"tool": "search", "arguments": {}, "seconds": 10**400, "documents": []}],
        },
    ],
)
def test_an_event_without_its_keys_is_an_error_and_not_the_end_of_the_chat(event, capsys):
    with odd(b"data: " + json.dumps({"rag_r1": event, "choices": []}).encode() + b"\n\n") as server:
        session, _ = terminal(server.url, "one", "two")
        assert session.chat() == 0
    assert capsys.readouterr().err.count("not of the chat API's form") == 2 == len(server.bodies)


@pytest.mark.parametrize("words", [["--check-only"], ["--ask", QUESTION]])
def test_a_token_that_is_refused_is_named_with_its_variable(words, capsys, monkeypatch):
    monkeypatch.setenv("CHAT_TOKEN", "another")

    def answer(asked):
        return (401, "{}") if asked.path.startswith("/v1/") else {}

    with JsonStub(answer) as stub:
        assert main(["--url", stub.url, *words]) == 1
        assert stub.asked[-1].headers["Authorization"] == "Bearer another"
    assert f"{stub.url} wants another token: set CHAT_TOKEN" in capsys.readouterr().err


def test_an_answer_that_is_refused_for_its_token_names_the_variable():
    with JsonStub(lambda asked: (401, "{}")) as stub, pytest.raises(ChatError, match="set CHAT_TOKEN"):
        list(stream_answer(stub.url, [{"role": "user", "content": "x"}]))


@pytest.mark.parametrize("status", [200, 400])
def test_what_has_no_end_is_not_kept_in_memory(monkeypatch, status):
    monkeypatch.setattr(client, "_MAX_LINE_BYTES", 1 << 16)
    read = []

    def counted(response, of=client.httpx.Response.iter_raw):
        return (read.append(len(piece)) or piece for piece in of(response))

    monkeypatch.setattr(client.httpx.Response, "iter_raw", counted)
    with odd(b"x" * (8 << 20), status) as server, pytest.raises(ChatError):
        list(stream_answer(server.url, [{"role": "user", "content": "x"}]))
    assert 0 < sum(read) < 1 << 20


class _Endless:
    """The address of a server that begins an answer and then sends the same bytes for ever."""

    def __init__(self, sent: bytes, pause_s: float = 0.0, head: bytes = b"\r\n"):
        self.sent, self.pause_s, self.head = sent, pause_s, b"HTTP/1.1 200 OK\r\n" + head

    def __enter__(self) -> str:
        self.listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._send, daemon=True).start()
        return f"http://127.0.0.1:{self.listening.getsockname()[1]}"

    def __exit__(self, *error: object) -> None:
        self.listening.close()

    def _send(self) -> None:
        connection, _ = self.listening.accept()
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(self.head)
            while True:
                connection.sendall(self.sent)
                time.sleep(self.pause_s)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("sent", "pause_s", "reason"),
    [
        (b": " + b"x" * 65_000 + b"\n", 0.0, "more than 1,048,576 bytes"),
        (b'data: {"choices": []}\n\n' * 100, 0.0, "longer than an answer"),
        (b":", 0.05, "takes more than 0.4 s"),
        (b": waiting\n\n", 0.05, "takes more than 0.4 s"),
    ],
)
def test_an_answer_without_end_is_ended_here(monkeypatch, sent, pause_s, reason):
    monkeypatch.setattr(client, "_MAX_BYTES", 1 << 20)
    monkeypatch.setattr(client, "_MAX_LINES", 10_000)
    monkeypatch.setattr(client, "_ANSWER_S", 0.4)
    with _Endless(sent, pause_s) as url, pytest.raises(ChatError, match=reason):
        list(stream_answer(url, [{"role": "user", "content": "x"}]))


@pytest.mark.timeout(60)
def test_a_head_without_end_is_ended_here(monkeypatch):
    monkeypatch.setattr(client, "_PIECE_S", 0.25)
    with _Endless(b"y", 0.05, b"X: ") as url, pytest.raises(ChatError, match="no answer within 0.5 s"):
        list(stream_answer(url, [{"role": "user", "content": "x"}]))


def test_a_line_of_empty_lists_is_refused_before_it_is_read(monkeypatch):
    loaded = []
    monkeypatch.setattr(json, "loads", lambda text, of=json.loads: loaded.append(text) or of(text))
    line = b'data: {"choices": [], "x": [' + b"[]," * 500_000 + b"[]]}\n\n"
    with odd(line) as server, pytest.raises(ChatError, match="form"):
        list(stream_answer(server.url, [{"role": "user", "content": "x"}]))
    assert not [text for text in loaded if len(text) > 1_000_000]


def test_lines_are_cut_wherever_the_pieces_end():
    whole = "data: é\r\n\ndata: 2\n\n: rest".encode()
    for size in range(1, len(whole) + 1):
        pieces = (whole[at : at + size] for at in range(0, len(whole), size))
        assert list(client._lines(pieces)) == ["data: é", "", "data: 2", ""]
    with pytest.raises(ChatError):
        list(client._lines(b"\n" * 1000 for _ in range(1000)))


def test_a_question_that_is_no_unicode_is_asked_without_what_is_none():
    with odd(b"") as server:
        session, _ = terminal(server.url)
        assert session.chat(["who\udcff?"]) == 1
    assert [body["messages"][-1]["content"] for body in server.bodies] == ["who??"]


def test_a_terminal_that_cannot_show_a_letter_shows_a_question_mark():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    TerminalChat("", None, out)._line("Zürich")
    assert out.buffer.getvalue() == b"Z?rich\n"


@pytest.mark.parametrize("token", ["s3cret\nHost: x", "s3cret x", "s3crét"])
@pytest.mark.parametrize("command", [main, serve_main])
def test_a_token_that_no_header_can_hold_is_refused_without_being_shown(monkeypatch, capsys, token, command):
    monkeypatch.setenv("CHAT_TOKEN", token)
    args = ["--url", "http://127.0.0.1:9", "--ask", "x"] if command is main else ["--demo", "--port", "0"]
    assert command(args) == 1
    output = "".join(capsys.readouterr())
    assert "CHAT_TOKEN" in output and "s3c" not in output
    assert command is serve_main or "no chat answers" in output, "a token hides no dead server"


def test_a_long_conversation_sends_no_more_messages_than_the_api_accepts(monkeypatch):
    sent: list[int] = []

    def answered(url, messages, token):
        sent.append(len(messages))
        assert messages[0]["role"] == messages[-1]["role"] == "user"
        yield "answer", "Paris"

    monkeypatch.setattr("rag_r1.serving.terminal.chat.stream_answer", answered)
    assert TerminalChat("", None, io.StringIO()).chat(["Where?"] * 103) == 0
    assert sent[:3] == [1, 3, 5] and max(sent) == sent[-1] == MAX_MESSAGES - 1
