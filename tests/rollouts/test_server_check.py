"""What the first request to a server says of it: soon, with its address, its answer and the remedy."""

from __future__ import annotations

import asyncio
import socket
from threading import Event, Thread

import pytest

from rag_r1.rollouts import server_check
from rag_r1.rollouts.search_check import try_first_search
from rag_r1.rollouts.server_check import ModelServer, check_endpoint, check_replies
from rag_r1.runs.errors import OtherServerError, RunError
from rag_r1.tools.retrieval import options as search_options
from tests.fakes.json_server import JsonStub
from tests.fakes.silent_server import silent_server
from tests.fakes.web_page import WebPage


def check(url: str, model: str | None = None):
    return check_endpoint(ModelServer(url, "NO_KEY", model))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((500, '{"detail": "boom"}'), 'HTTP 500: {"detail": "boom"}'),
        ((503, ""), "HTTP 503,"),
        ({"hello": "world"}, """'{"hello": "world"}' instead of a list of models"""),
        ((200, "hello"), "'hello' instead of a list of models"),
        ((302, ""), "HTTP 302, which leads elsewhere"),
    ],
)
def test_what_a_server_answers_instead_of_its_models_is_told_with_address_and_flag(answer, said):
    with JsonStub(lambda asked: answer) as stub, pytest.raises(RunError) as raised:
        check(stub.url)
    assert f"{stub.url}/v1 answers with {said}" in str(raised.value) and "--base-url" in str(raised.value)
    assert [asked.path for asked in stub.asked] == ["/v1/models"], "it is asked once"


@pytest.mark.parametrize(
    "answer",
    [
        {"object": "list", "data": None},
        {"models": [{"name": "m"}]},
        [{"id": "m"}],
        {"data": [{"name": "m"}]},
        (404, "{}"),
        (403, '{"error": "this key may not list models"}'),
        (200, '{"data": [' + ",".join(["{}"] * 30_000) + "]}"),
    ],
)
def test_a_server_that_lists_its_models_otherwise_or_not_is_no_error(answer):
    with JsonStub(lambda asked: answer) as stub:
        assert check(stub.url, "m") == {}


def test_a_server_that_does_not_speak_http_is_no_model_server():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with listener.accept()[0] as client:
                client.recv(1000)
                client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        Thread(target=greet, daemon=True).start()
        with pytest.raises(RunError, match="no model server answers at .*correct --base-url"):
            check(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")


def test_a_server_that_refuses_the_key_is_named_with_the_variable_of_the_key():
    with JsonStub(lambda asked: (401, '{"error": "no key"}')) as stub, pytest.raises(RunError) as raised:
        check(stub.url)
    said = str(raised.value)
    assert f"{stub.url}/v1" in said and "HTTP 401" in said and "$NO_KEY" in said and "--base-url" in said


def test_a_key_that_no_header_can_have_is_told_without_the_key(monkeypatch):
    for key in ("sk-1234\nof another line", "sk-1234-schl\u00fcssel"):
        monkeypatch.setenv("NO_KEY", key)
        with JsonStub(lambda asked: {"data": []}) as stub, pytest.raises(RunError) as raised:
            check(stub.url)
        assert "$NO_KEY" in str(raised.value) and "sk-1234" not in str(raised.value)


def test_a_model_that_is_not_in_the_list_is_named_with_those_that_are():
    with JsonStub(lambda asked: {"data": [{"id": "other"}]}) as stub, pytest.raises(RunError) as raised:
        check(stub.url, "mine")
    assert "has no model 'mine', but other" in str(raised.value)


def replies(url: str, engine: str = "chat") -> None:
    check_replies(ModelServer(url, "NO_KEY", "m"), engine)


@pytest.mark.parametrize("engine", ["chat", "completions"])
def test_a_server_without_a_list_is_asked_for_one_token(engine):
    with (
        JsonStub(lambda asked: (404, '{"error": "no such route"}')) as stub,
        pytest.raises(RunError) as raised,
    ):
        replies(stub.url, engine)
    said = str(raised.value)
    assert f"{stub.url}/v1" in said and "no such route" in said and "--base-url" in said and "'m'" in said
    listed, asked = stub.asked
    assert listed.path == "/v1/models" and asked.path.endswith("completions")
    assert ("chat" in asked.path) == (engine == "chat") and asked.body["max_tokens"] == 1


@pytest.mark.parametrize("answer", [{"choices": []}, (400, "{}"), (429, "{}")])
def test_what_a_server_without_a_list_says_of_the_smallest_request_alone_is_no_fault(answer):
    with JsonStub(lambda asked: (404, "{}") if asked.method == "GET" else answer) as stub:
        replies(stub.url)


def lists(answer):
    """The answers of a server that shows its models to everybody."""
    return lambda asked: {"data": [{"id": "m"}]} if asked.method == "GET" else answer


@pytest.mark.parametrize("status", [401, 402, 403, 404, 501])
def test_a_server_that_shows_its_models_but_refuses_to_answer_is_named(status):
    with JsonStub(lists((status, "{}"))) as stub, pytest.raises(RunError) as raised:
        replies(stub.url)
    assert f"HTTP {status}" in str(raised.value) and "--base-url" in str(raised.value)
    assert len(stub.asked) == 2


@pytest.mark.parametrize("status", [200, 400, 429, 500, 503])
def test_what_may_pass_at_a_server_with_a_list_is_left_to_the_run(status):
    with JsonStub(lists((status, "{}"))) as stub:
        replies(stub.url)
    assert [asked.path for asked in stub.asked] == ["/v1/models", "/v1/chat/completions"]


def test_a_server_with_a_list_may_load_the_model_at_the_first_request(monkeypatch):
    monkeypatch.setattr(server_check, "TIMEOUT_S", 0.3)
    is_loaded, answered = Event(), []
    with JsonStub(lambda asked: lists(None)(asked) or answered.append(is_loaded.wait(60))) as stub:
        replies(stub.url)
        assert not answered, "the check did not wait for the model"
        is_loaded.set()
    assert [asked.path for asked in stub.asked] == ["/v1/models", "/v1/chat/completions"]


def test_a_model_server_that_hangs_is_named_after_one_short_wait(monkeypatch):
    monkeypatch.setattr(server_check, "TIMEOUT_S", 0.2)
    with silent_server() as url, pytest.raises(RunError) as raised:
        check(url)
    assert f"no model server answers at {url}/v1 (no answer within 0.2 s)" in str(raised.value)


def first_search(url: str, **keys: object) -> None:
    asyncio.run(try_first_search({"url": url, **keys}, url))


def test_the_first_search_is_sent_once_whatever_the_retries_are():
    with JsonStub(lambda asked: (500, "{}")) as stub, pytest.raises(RunError) as raised:
        first_search(stub.url, retries=9)
    assert "(HTTP 500)" in str(raised.value) and len(stub.asked) == 1
    assert not isinstance(raised.value, OtherServerError), "it may recover"


def test_a_search_that_hangs_is_named_after_one_short_wait(monkeypatch):
    monkeypatch.setattr(search_options, "FIRST_ANSWER_S", 0.2)
    with silent_server() as url, pytest.raises(RunError, match=f"{url} does not work .no answer within 0.2"):
        first_search(url, timeout_s=65.0)
    assert search_options.first_search({"timeout_s": 0.1})["timeout_s"] == 0.1, "a shorter one stays"


def test_a_web_page_in_place_of_a_search_is_called_one():
    with WebPage() as page, pytest.raises(OtherServerError, match="it answers with a web page"):
        first_search(page.url)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"hello": "world"}, "'result' must be a list"),
        ([1, 2], "'result' must be a list"),
        ({"result": [[{"text": "Paris"}]]}, "a document must have a string 'contents'"),
    ],
)
def test_json_of_another_shape_in_place_of_a_search_is_named_with_what_is_expected(answer, said):
    with JsonStub(lambda asked: answer) as stub, pytest.raises(OtherServerError) as raised:
        first_search(stub.url)
    assert f"the search at {stub.url} does not work (it answers with JSON of another shape: {said}" in str(
        raised.value
    )
    assert "correct the server, or --retriever-url" in str(raised.value)
