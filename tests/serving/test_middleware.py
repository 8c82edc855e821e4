"""Who may reach the chat server, and what its answers let a browser do."""

from __future__ import annotations

import http.client
import json
import socket

import httpx
import pytest

from rag_r1.http_server.idle_timeout import IdleTimeoutProtocol
from rag_r1.http_server.request_body import MAX_BODY_BYTES, WholeBodyMiddleware
from rag_r1.http_server.request_guard import HEADERS
from rag_r1.serving.page import PAGE_FILES
from tests.serving.running_chat import GOLD, arguments, chat_server, policy_of, question

TOKEN = "s3cret"


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    options = {"allowed": ["chat.example.org"], "token": TOKEN}
    with policy_of() as policy:
        with chat_server(arguments(policy.url, tmp_path_factory.mktemp("serve")), **options) as chat:
            yield chat


KNOWN = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize("sent", [{}, {"Authorization": "Bearer s3cre"}, {"Authorization": TOKEN}])
def test_without_the_token_there_is_only_the_page_and_the_probe(chat, sent):
    for path in ("/v1/models", "/about", "/metrics", "/openapi.json"):
        assert chat.get(path, headers=sent).status_code == 401
    refused = chat.post(question(), headers=sent)
    assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
    for path in (*PAGE_FILES, "/health"):
        assert chat.get(path, headers=sent).status_code == 200


def test_with_the_token_there_is_an_answer(chat):
    assert GOLD in chat.post(question(), headers=KNOWN).text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:8080", 200),
        ("192.168.1.5:8080", 200),
        ("CHAT.example.org", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost@evil.example", 421),
        ("", 421),
    ],
)
def test_a_name_that_is_not_the_servers_is_refused(chat, host, status):
    assert chat.get("/v1/models", headers={**KNOWN, "Host": host}).status_code == status


def test_a_request_with_two_hosts_or_none_is_refused(chat):
    for hosts in ([], ["localhost", "localhost"]):
        connection = http.client.HTTPConnection(chat.url.removeprefix("http://"), timeout=10)
        connection.putrequest("GET", "/health", skip_host=True)
        for host in hosts:
            connection.putheader("Host", host)
        connection.endheaders()
        assert connection.getresponse().status in (400, 421)  # h11 refuses both itself
        connection.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "https://chat.example.org"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_a_page_of_another_origin_cannot_ask(chat, sent, status):
    assert chat.post(question(), headers={**KNOWN, **sent}).status_code == status


def test_the_servers_own_page_can_ask(chat):
    assert chat.post(question(), headers={**KNOWN, "Origin": chat.url}).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_form_cannot_ask(chat, kind):
    body = json.dumps(question())
    sent = {**KNOWN, "Content-Type": kind}
    response = chat.client.post("/v1/chat/completions", content=body, headers=sent)
    assert response.status_code == 415


def test_a_body_that_is_too_large_is_refused_while_it_arrives(chat):
    def endless():
        for _ in range(2 * MAX_BODY_BYTES // (1 << 16)):
            yield b" " * (1 << 16)

    sent = {**KNOWN, "Content-Type": "application/json"}
    try:
        status = chat.client.post("/v1/chat/completions", content=endless(), headers=sent).status_code
    except httpx.TransportError:
        status = 413  # the server closed the connection while the client was still sending
    assert (status, chat.get("/health").status_code) == (413, 200)


async def test_part_of_a_body_whose_client_has_gone_is_neither_checked_nor_passed_on():
    part = {"type": "http.request", "body": b'{"a": 1}', "more_body": True}
    messages, seen = [part, {"type": "http.disconnect"}], []

    async def note(*arguments):
        seen.append(arguments)

    async def receive():
        return messages.pop(0)

    await WholeBodyMiddleware(note, seen.append)({"type": "http"}, receive, note)
    assert not messages and not seen


def test_headers_that_are_too_large_are_refused(chat):
    try:
        status = chat.get("/health", headers={"X-Much": "x" * (1 << 20)}).status_code
    except httpx.TransportError:
        status = 400  # closed while the client was still sending
    assert (status, chat.get("/health").status_code) == (400, 200)


@pytest.mark.slow
def test_a_connection_that_never_asks_is_closed_and_a_chat_under_way_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(IdleTimeoutProtocol, "check_s", 0.1)
    with policy_of() as policy, chat_server(arguments(policy.url, tmp_path)) as chat:
        address = ("127.0.0.1", int(chat.url.rpartition(":")[2]))
        for sent in (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n"):
            with socket.create_connection(address, timeout=10) as silent:
                silent.sendall(sent)
                assert silent.recv(100) == b""
        policy.latency_s = 0.4
        assert GOLD in chat.post(question()).text


def test_no_answer_may_run_anything_that_is_not_the_servers_own_file(chat):
    for answer in (chat.get("/"), chat.get("/nothing"), chat.get("/health", headers={"Host": "evil"})):
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    policy = HEADERS["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy


def test_the_page_has_nothing_inline_and_nothing_of_other_servers(chat):
    page = chat.get("/").text
    assert "<style" not in page and "style=" not in page and " on" not in page.replace(" one", "")
    for mark in ("<script>", "//cdn", "http://", "https://"):
        assert mark not in page
    script = "".join(chat.get(path).text for path in PAGE_FILES if path.endswith(".js"))
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "srcdoc"):
        assert way not in script


_POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
FRAMINGS = {
    "two lengths": _POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length and chunks": _POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a negative length": _POST + b"Content-Length: -2\r\n\r\n{}",
    "a length in hex": _POST + b"Content-Length: 0x2\r\n\r\n{}",
    "a length that is huge": _POST + b"Content-Length: 99999999999999999999\r\n\r\n{}",
    "another encoding": _POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a hidden encoding": _POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "a chunk without a size": _POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a chunk with a long extension": _POST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 100_000,
    "a space before the colon": _POST + b"Content-Length : 2\r\n\r\n{}",
    "a header without a colon": _POST + b"nothing\r\n\r\n",
    "a line break in a header": _POST + b"X-A: b\r\n\tc\r\n\nContent-Length: 2\r\n\r\n{}",
    "a NUL in a header": _POST + b"X-A: \0\r\n\r\n",
    "no version": b"GET /health\r\n\r\n",
    "a target elsewhere": b"GET http://evil.example/health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,
    "binary": bytes(range(256)) * 4,
    "a long line": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("name", FRAMINGS)
def test_a_request_that_is_framed_wrongly_is_refused_and_the_server_goes_on(chat, name):
    address = ("127.0.0.1", int(chat.url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=30) as client:
        try:
            client.sendall(FRAMINGS[name])
            client.shutdown(socket.SHUT_WR)
            reply = client.makefile("rb").read()
        except OSError:
            reply = b""  # closed while the client was still sending
    statuses = [line.split()[1] for line in reply.split(b"\r\n") if line.startswith(b"HTTP/1.")]
    assert len(statuses) <= 1 and all(status[:1] == b"4" for status in statuses), reply
    assert chat.get("/health").status_code == 200
