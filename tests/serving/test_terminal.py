"""`rag-r1 chat` with a running server."""

from __future__ import annotations

import io

import pytest
from running_chat import GOLD, PASSAGES, QUESTION, arguments, chat_server, policy_of

from rag_r1.demo.loopback import LoopbackServer
from rag_r1.serving.client import ChatError, ask
from rag_r1.serving.terminal import Terminal, main, plain_text

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


def terminal(url: str, *lines: str) -> tuple[Terminal, io.StringIO]:
    """A terminal into which these lines are typed, and what it shows."""
    typed, out = iter(lines), io.StringIO()

    def read() -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    return Terminal(url, None, out, read), out


def test_a_question_shows_its_search_its_passages_and_the_answer(chat):
    asking, out = terminal(chat.url)
    assert asking.chat([QUESTION]) == 0
    shown = out.getvalue().splitlines()
    assert shown[0] == "I need to search." and shown[1].startswith(f"search: {QUESTION}")
    assert "Mara Torval: The painter Mara Torval was born in Karlen Ford in 1907." in shown[2]
    assert shown[-4:] == ["I need to search.", GOLD, "the answer is in:", "  * Mara Torval"]


def test_what_comes_from_documents_cannot_control_the_terminal(chat):
    asking, out = terminal(chat.url)
    asking.chat([QUESTION])
    assert "Hostile ?[2J??31m" in out.getvalue()
    assert all(c.isprintable() or c == "\n" for c in out.getvalue())
    assert plain_text("a\tb\r\u202ec\n") == "a b??c\n"


def test_a_conversation_goes_on_until_it_is_begun_anew(chat, policy):
    asking, _ = terminal(chat.url, QUESTION, QUESTION, "", "/new", QUESTION)
    policy.bodies.clear()
    assert asking.chat() == 0
    prompts = [policy.tokenizer.decode(body["prompt"]) for body in policy.bodies[::2]]
    assert [f"Answer: {GOLD}" in prompt for prompt in prompts] == [False, True, False]


def test_ctrl_c_stops_an_answer_and_not_the_chat(chat, monkeypatch):
    asking, out = terminal(chat.url)
    show = asking._show

    def interrupted(kind, data):
        if kind == "passages":
            raise KeyboardInterrupt
        show(kind, data)

    monkeypatch.setattr(asking, "_show", interrupted)
    assert asking.answer(QUESTION) is False and "stopped" in out.getvalue()
    assert asking.messages == []


def test_a_server_that_is_away_is_an_error_with_its_address(capsys):
    assert main(["--url", "http://127.0.0.1:9", "--ask", QUESTION]) == 1
    assert "error: no answer from http://127.0.0.1:9" in capsys.readouterr().out


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"data: {\n\n",
        b'data: {"choices": [{"delta": 3}]}\n\n',
        b'data: {"rag_r1": 1, "choices": []}\n\ndata: [DONE]\n\n',
        b"data: " + b"[" * 5000 + b"\n\n",
        b'data: {"error": {"message": "away"}}\n\n',
    ],
)
def test_an_answer_of_another_form_is_an_error(answer):
    from aiohttp import web

    class Odd(LoopbackServer):
        def add_routes(self, app):
            async def reply(request):
                return web.Response(body=answer, content_type="text/event-stream")

            app.router.add_post("/v1/chat/completions", reply)

    with Odd() as server, pytest.raises(ChatError):
        list(ask(server.url, [{"role": "user", "content": "x"}]))
