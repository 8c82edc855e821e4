"""A real server under hostile input: no 5xx, no hang, and it works afterwards."""

from __future__ import annotations

import json
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis: pip install 'rag-r1[dev]'")
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CONFORMANCE = [status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def url(bm25_index, start_server, tmp_path_factory):
    """A server of its own process, with pages and two indexes."""
    pages = tmp_path_factory.mktemp("pages") / "pages.jsonl"
    pages.write_text('{"url": "https://ulm", "contents": "Ulm"}\n')
    with start_server("--index", bm25_index, "--index", f"wiki={bm25_index}", "--pages", pages) as server:
        yield server.url
        assert works(server.url)


def works(address):
    body = httpx.post(address + "/retrieve", json={"queries": ["Ulm"], "topk": 1}, timeout=60).json()
    page = httpx.get(address + "/metrics", timeout=60).text
    return body["result"][0][0]["id"] == "town-0" and 'outstanding{index="default"} 0.0' in page


@pytest.mark.slow
def test_the_server_keeps_what_its_page_about_the_api_promises(url):
    api = schemathesis.openapi.from_url(url + "/openapi.json")
    for operation in (result.ok() for result in api.get_all_operations()):

        @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def keeps_its_promise(case):
            case.call_and_validate(checks=[not_a_server_error, *CONFORMANCE], timeout=60)

        keeps_its_promise()


ROUTES = ["/retrieve", "/queries", "/access", "/documents"]
ROUTES += ["/indexes/wiki/retrieve", "/indexes/wiki/queries", "/reload"]
VALID = [
    {"queries": ["Which river is Ulm on?", ""], "topk": 2, "return_scores": True, "index": "wiki"},
    {"query": "Ulm", "top_k": 3},
    {"queries": ["Celle"], "k": 1},
    {"urls": ["https://ulm"]},
    {"ids": ["town-0"]},
    {"index": "wiki", "path": "elsewhere", "encoder": None},
]
ODD = [
    None, True, -1, 0, 1.5, 1e400, -(10**400), 2**63, "", "\x00", "\ud800", "\u202e", "😀" * 9, "x" * 9000,
    [], {}, [[]], [None], ["Ulm", 5], {"$ne": 1}, {"__proto__": 1}, "../../etc/passwd", "{{7*7}}", "' OR 1=1",
    ["Ulm"] * 2100,
]  # fmt: skip
TYPES = ["application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]


def malformed(seed):
    """One request: route, body, headers. A valid body spoilt by one of the ways in which bodies go wrong."""
    rng = random.Random(seed)
    body = dict(rng.choice(VALID))
    way = rng.randrange(8)
    if way < 3:
        for _ in range(rng.randint(1, 3)):
            body[rng.choice([*body, "queries", "topk", "query", "urls", "index", "path"])] = rng.choice(ODD)
    if way == 3:
        body = rng.choice(ODD)
    content = json.dumps(body).encode("utf-8")
    if way == 4:
        content = content[: rng.randrange(len(content))]
    elif way == 5:
        spoilt = bytearray(content)
        for _ in range(rng.randint(1, 6)):
            spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
        content = bytes(spoilt)
    elif way == 6:
        content = rng.choice([
            rng.randbytes(rng.randrange(200)), b"[" * rng.randrange(5000), b'{"a":' * rng.randrange(5000),
            b"\xef\xbb\xbf" + content, content.decode().encode("utf-16"), content * 2, b"\x00" * 50, b"NaN",
            b'{"queries": ["a"], "queries": 5}', b'{"queries": [' + b'"a",' * 3000 + b'"a"]}', b"1" * 5000,
        ])  # fmt: skip
    headers = {"content-type": "application/json"}
    if way == 7:
        headers["content-type"] = rng.choice(TYPES)
        headers |= rng.choice([{}, {"content-encoding": "gzip"}, {"expect": "100-continue"}])
    return rng.choice(ROUTES), content, headers


def bombard(url, seeds):
    """By http.client: with httpx ten thousand requests take three times as much CPU."""
    with closing(HTTPConnection(url.removeprefix("http://"), timeout=60)) as client:
        for seed in seeds:
            route, content, headers = malformed(seed)
            client.request("POST", route, content, headers)
            answer = client.getresponse()
            text = answer.read()
            assert answer.status < 500, (seed, route, content[:200], text)
            if answer.status != 200:
                assert set(json.loads(text)) == {"error", "reason"}, (seed, route, text)


@pytest.mark.slow
def test_ten_thousand_malformed_bodies_from_eight_clients(url):
    with ThreadPoolExecutor(8) as clients:
        list(clients.map(lambda first: bombard(url, range(first, 10_000, 8)), range(8)))
    assert works(url)


@pytest.mark.slow
def test_broken_http_hurts_nobody_else(url):
    host, port = url.removeprefix("http://").split(":")
    head = b"POST /retrieve HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    left = []
    for sent in (
        b"\x16\x03\x01\x02\x00" * 20,
        b"GET / HTTP/9.9\r\n\r\n",
        head + b"content-length: 10\r\ncontent-length: 20\r\n\r\n{}",
        head + b"content-length: -5\r\n\r\n{}",
        head + b"transfer-encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n",
        head + b"content-length: 1000\r\n\r\n{",  # and then silence
        head + b"x: " + b"y" * 100_000,
    ):
        connection = socket.create_connection((host, int(port)), timeout=60)
        connection.sendall(sent)
        left.append(connection)
    assert works(url)
    for connection in left:
        connection.close()
    assert works(url)
