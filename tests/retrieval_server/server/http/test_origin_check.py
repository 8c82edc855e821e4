"""What a web page in somebody's browser can send: by another name, across sites, as a form."""

from __future__ import annotations

import json
import socket

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.server.http.origin_check import HostNames, server_names

from ...builders import shelf_of

ASK = {"queries": ["Ulm"], "topk": 1}
LABEL = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=12)
NAME = st.lists(LABEL, min_size=2, max_size=4).map(".".join).map(lambda name: name + ".example")


SERVED = "127.0.0.1 127.0.0.1:8000 10.1.2.3:80 localhost LOCALHOST:8000 localhost.:8000 [::1]:8000 [fe80::1]"
SERVED += " node17 search.example.org:443 a.b.internal internal"
STRANGE = "evil.example localhost.evil.example 127.0.0.1.evil.example evil.example.org xinternal"
STRANGE += (
    " a.internal.evil.example 127.0.0.1@evil.example evil.example:80:80 [::1].evil.example [evil.example] *"
)


@pytest.mark.parametrize(
    "host, served",
    [(host, True) for host in SERVED.split()] + [(host, False) for host in [*STRANGE.split(), "a b", ""]],
)
def test_addresses_and_the_servers_own_names_are_served_and_no_others(host, served):
    names = HostNames(["node17", "0.0.0.0"], ["search.example.org", ".internal"])
    assert names.serves(host.lower()) == served


@given(NAME, NAME)
def test_a_name_is_served_only_where_it_is_listed(name, other):
    assert HostNames(allowed=[name]).serves(name) and HostNames(allowed=["*"]).serves(name)
    assert HostNames(allowed=[name]).serves(other) == (name == other)
    assert HostNames(allowed=["." + name]).serves("deep.er." + name)
    assert not HostNames(allowed=["." + name]).serves("x" + name)
    assert not HostNames().serves(name)


def test_the_machines_own_name_is_one_of_the_servers():
    assert HostNames(server_names("0.0.0.0")).serves(socket.gethostname().lower())


@pytest.fixture(scope="module")
def server(bm25, serve):
    with serve(lambda: bm25, hosts=HostNames(["testserver"], ["search.example"])) as client:
        yield client


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://testserver"},
        {"origin": "http://testserver", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        {"origin": "https://search.example"},  # a proxy has put its own Host in the place of the browser's
        {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"},
        {"host": "localhost:1", "origin": "http://LOCALHOST:1"},
    ],
)
def test_what_no_other_site_sends_is_answered(server, headers):
    assert server.post("/retrieve", json=ASK, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://testserver.evil.example"},
        {"origin": "http://testserver:81"},
        {"origin": "http://[::1"},
        {"origin": "http://127.0.0.1:3000", "host": "127.0.0.1:8000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "anything"},
    ],
)
def test_a_write_from_another_site_is_refused(server, headers):
    for path in ("/retrieve", "/reload", "/access", "/no/such"):
        answer = server.post(path, json=ASK, headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (403, "cross_origin")
    assert server.get("/health", headers=headers).status_code == 200  # a link may lead here


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/openapi.json", "/retrieve"])
def test_under_another_name_nothing_is_answered(server, path):
    for host in ("evil.example", "evil.example:8000", ""):
        answer = server.get(path, headers={"host": host})
        assert (answer.status_code, answer.json()["error"]) == (421, "unknown_host")
        assert "--allowed-host" in answer.json()["reason"]


FORMS = "text/plain application/x-www-form-urlencoded multipart/form-data application/jsonp text/json".split()


@pytest.mark.parametrize("kind", [None, "", "text/plain; application/json", *FORMS])
def test_a_body_that_does_not_say_that_it_is_json_is_refused(client, kind):
    headers = {} if kind is None else {"content-type": kind}
    answer = client.post("/retrieve", content=json.dumps(ASK), headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (415, "unsupported_media_type")
    assert "application/json" in answer.json()["reason"]


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/ld+json"]
)
def test_json_under_all_its_names_is_answered(client, kind):
    answer = client.post("/retrieve", content=json.dumps(ASK), headers={"content-type": kind})
    assert answer.status_code == 200


@pytest.fixture(scope="module")
def live(tmp_path_factory, start_server):
    """A server of its own process, with an index that may be exchanged for the one beside it."""
    shelf = shelf_of(tmp_path_factory.mktemp("shelf"), red={}, blue={})
    flags = ["--index", shelf / "red", "--allowed-host", "search.example", "--read-timeout", "1"]
    with start_server(*flags) as server:
        yield server


def everything_from(connection):
    """All that comes until the server closes."""
    return b"".join(iter(lambda: connection.recv(2**16), b""))


def exchange(live, text):
    """What the server answers to these lines; the body is an order to reload."""
    body = b'{"path": "blue"}'
    with socket.create_connection(("127.0.0.1", live.port), timeout=60) as connection:
        lines = text.strip().replace("\n", "\r\n") + f"\r\ncontent-length: {len(body)}\r\nconnection: close"
        connection.sendall(lines.encode() + b"\r\n\r\n" + body)
        return int(everything_from(connection).split(b" ", 2)[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "head, status",
    [
        ("host: evil.example\norigin: http://evil.example\ncontent-type: application/json", 421),
        ("content-type: application/json", 421),
        ("host: localhost\nhost: evil.example\ncontent-type: application/json", 421),
        ("host: 127.0.0.1\norigin: http://evil.example\ncontent-type: application/json", 403),
        ("host: 127.0.0.1\nsec-fetch-site: cross-site\ncontent-type: application/json", 403),
        ("host: 127.0.0.1\ncontent-type: text/plain", 415),
        ("host: 127.0.0.1", 415),
    ],
)
def test_no_page_exchanges_an_index(live, head, status):
    before = httpx.get(live.url + "/ready").json()["index_version"]
    assert exchange(live, f"POST /reload HTTP/1.1\n{head}") == status
    assert httpx.get(live.url + "/ready").json()["index_version"] == before


@pytest.mark.slow
def test_loopback_a_proxy_and_health_checks_reach_the_server(live):
    for host in ("127.0.0.1", f"localhost:{live.port}", "[::1]", "search.example", socket.gethostname()):
        answer = httpx.post(live.url + "/retrieve", json=ASK, headers={"host": host})
        assert answer.status_code == 200, answer.text
    with socket.create_connection(("127.0.0.1", live.port), timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")  # a load balancer of the old kind
        assert connection.recv(2**16).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
def test_a_hundred_megabytes_of_headers_are_neither_taken_nor_kept(live):
    before = live.resident
    with socket.create_connection(("127.0.0.1", live.port), timeout=60) as connection:
        connection.sendall(b"POST /retrieve HTTP/1.1\r\nhost: localhost\r\n")
        sent = 0
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for number in range(100_000):
                connection.sendall(b"x%d: " % number + b"y" * 1000 + b"\r\n")
                sent += 1000
    assert sent < 20e6 and live.resident - before < 20e6


@pytest.mark.slow
def test_two_hundred_half_sent_requests_are_closed(live):
    held = [socket.create_connection(("127.0.0.1", live.port), timeout=60) for _ in range(200)]
    for connection in held:
        head = b"POST /retrieve HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        connection.sendall(head + b"content-length: 100\r\n\r\n{")
    for connection in held:
        assert everything_from(connection).startswith(b"HTTP/1.1 408")
        connection.close()
