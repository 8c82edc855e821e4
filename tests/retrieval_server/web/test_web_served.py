"""A web engine behind the server's own wire; recorded, and replayed to the byte."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from retrieval_server.engine.options import EngineOptions
from retrieval_server.errors import SearchFailedError
from retrieval_server.web.engines import ENGINES
from retrieval_server.web.options import WebOptions
from retrieval_server.web.source import WebSource

from .conftest import KEY

BODIES = [
    ("/retrieve", {"queries": ["Ulm", "Trier", ""], "topk": 2, "return_scores": True}),
    ("/retrieve", {"queries": ["Ulm"]}),
    ("/retrieve", {"query": "Jena", "top_k": 4}),
    ("/queries", {"queries": ["Celle", "Ulm"], "k": 1}),
]


def answers(client) -> list[bytes]:
    got = [client.post(path, json=body) for path, body in BODIES]
    assert [answer.status_code for answer in got] == [200] * len(BODIES)
    return [answer.content for answer in got]


@pytest.mark.slow
@pytest.mark.parametrize("stub", list(ENGINES), indirect=True)
def test_every_wire_carries_web_documents_and_a_replay_is_the_same_bytes(stub, open_source, serve, tmp_path):
    path = tmp_path / "run.jsonl"
    with serve(lambda: open_source(record=path)) as client:
        recorded = answers(client)
        assert client.get("/ready").json()["backend"] == f"web:{stub.api}"
    scored, bare, single, lines = (json.loads(body) for body in recorded)
    assert [len(hits) for hits in scored["result"]] == [2, 2, 0]
    first = scored["result"][0][0]
    assert first["score"] == 1.0 and first["document"] == bare["result"][0][0]
    assert first["document"]["id"] == first["document"]["url"] == "https://example.org/Ulm/1"
    assert len(single["results"]) == 4 and single["results"] == [
        {"document": document, "score": 1 / rank, "id": document["id"], "content": document["contents"]}
        for rank, document in enumerate(single["result"][0], 1)
    ]
    assert lines["answers"][0][0].startswith('https://example.org/Celle/1\t"Celle no. 1')
    expected = len(stub.requests)
    assert KEY not in path.read_text()

    with serve(lambda: WebSource.open(stub.api, {}, replay=path)) as client:
        assert answers(client) == recorded
        missing = client.post("/retrieve", json={"queries": ["Ulm", "never asked"], "topk": 2})
        assert missing.status_code == 404 and missing.json()["error"] == "not_recorded"
        assert "'never asked'" in missing.json()["reason"]
    assert len(stub.requests) == expected


def test_replay_and_record_together_ask_for_the_rest_only(stub, open_source, serve, tmp_path):
    path = tmp_path / "run.jsonl"
    for queries, expected in ((["a", "b"], ["a", "b"]), (["b", "c"], ["a", "b", "c"])):
        with serve(lambda: open_source(replay=path, record=path)) as client:
            assert client.post("/retrieve", json={"queries": queries}).status_code == 200
        assert sorted(stub.queries) == expected
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.slow
def test_64_clients_are_answered_as_one_and_recorded_once(stub, open_source, serve, tmp_path):
    path = tmp_path / "run.jsonl"
    queries = [f"query {number % 32}" for number in range(64)]
    options = WebOptions(concurrency=8)
    with (
        serve(lambda: open_source(options, record=path), options=EngineOptions(cache_size=0)) as client,
        ThreadPoolExecutor(64) as clients,
    ):
        together = list(clients.map(lambda q: client.post("/retrieve", json={"query": q}).content, queries))
        alone = [client.post("/retrieve", json={"query": query}).content for query in queries]
    assert together == alone
    assert sorted(stub.queries) == sorted(set(queries)) and len(path.read_text().splitlines()) == 32
    assert stub.most_at_once <= 8 and stub.connections <= 8


async def test_what_cannot_be_recorded_is_not_answered(open_source, tmp_path, monkeypatch):
    """A run that goes on without its recording would look reproducible and not be."""
    source = open_source(record=tmp_path / "run.jsonl")
    try:
        await source.answer("kept", 3)
        real = os.write
        # As on a disk that is full after ten bytes.
        monkeypatch.setattr(os, "write", lambda descriptor, line: real(descriptor, line[:10]))
        with pytest.raises(SearchFailedError, match="cannot record") as failed:
            await source.answer("lost", 3)
        assert failed.value.error == "record_failed"
        monkeypatch.undo()
        await source.answer("kept too", 3)
    finally:
        await source.close()
    rows = [json.loads(line)["query"] for line in (tmp_path / "run.jsonl").open()]
    assert rows == ["kept", "kept too"]


def test_a_web_engine_gives_no_documents_by_id_and_says_so(open_source, serve):
    with serve(open_source) as client:
        answer = client.post("/documents", json={"ids": ["https://example.org/Ulm/1"]})
    assert (answer.status_code, answer.json()["error"]) == (404, "no_documents")
    assert "web:" in answer.json()["reason"]
