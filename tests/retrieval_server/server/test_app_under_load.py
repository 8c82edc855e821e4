"""The app while it loads, works, fails, or is asked for more than it can do."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import asynccontextmanager

import httpx

from retrieval_server.engine.options import EngineOptions
from retrieval_server.errors import UserError
from retrieval_server.search.backends import Backend
from retrieval_server.search.index_source import IndexSource
from retrieval_server.search.reranker import Reranker
from retrieval_server.server.app import create_app
from retrieval_server.server.http.load_shedding import LoadSheddingMiddleware, LoopMonitor

from ..running import asgi_client


class Gate(Backend):
    """A backend that waits where it is shut; what a slow search looks like from outside."""

    def __init__(self, fails: bool = False):
        self.entered, self.go, self.fails = threading.Event(), threading.Event(), fails
        self.go.set()

    def prepare(self, queries):
        self.entered.set()
        assert self.go.wait(30)
        if self.fails:
            raise RuntimeError("out of everything")
        return queries

    def find(self, prepared, topk):
        return [[] for _ in prepared]


async def until(condition):
    while not await condition():
        await asyncio.sleep(0.005)


async def test_health_answers_while_a_search_runs(bm25, bm25_index):
    async with held(bm25) as (client, gate):
        search = asyncio.create_task(client.post("/retrieve", json={"queries": ["Ulm"]}))
        await until(lambda: asyncio.sleep(0, gate.entered.is_set()))
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready")).status_code == 200
        assert not search.done()
        gate.go.set()
        assert (await search).json() == {"result": [[]]}


async def is_ready(client):
    return (await client.get("/ready")).status_code == 200


async def shut(gate, client):
    """Wait until the server is ready, then let no search through."""
    await until(lambda: is_ready(client))
    gate.go.clear()
    gate.entered.clear()


@asynccontextmanager
async def held(bm25, **options):
    """A client of an app that is ready and lets no search through, and the gate at which they wait."""
    gate = Gate()
    async with asgi_client(served_by(gate, bm25, **options)) as client:
        await shut(gate, client)
        yield client, gate


async def test_until_the_index_is_loaded_the_server_lives_but_is_not_ready(bm25):
    loading = threading.Event()

    def load():
        assert loading.wait(30)
        return bm25

    async with asgi_client(create_app(load)) as client:
        assert (await client.get("/health")).status_code == 200
        for answer in (await client.get("/ready"), await client.post("/retrieve", json={"queries": ["Ulm"]})):
            assert (answer.status_code, answer.json()["error"]) == (503, "not_ready")
            assert answer.headers["retry-after"]
        loading.set()
        await until(lambda: is_ready(client))
        assert (await client.post("/retrieve", json={"queries": ["Ulm"]})).status_code == 200


async def test_an_index_that_does_not_load_is_reported_once_and_never_ready(caplog):
    failures = []

    def load():
        raise UserError("passages: the manifest says 20, found 7")

    async with asgi_client(create_app(load, on_load_failure=failures.append)) as client:
        await until(lambda: asyncio.sleep(0.001, failures))
        answer = await client.get("/ready")
        assert answer.status_code == 503 and "could not be loaded" in answer.json()["reason"]
    assert [str(failure) for failure in failures] == ["passages: the manifest says 20, found 7"]
    assert "the index default could not be loaded: passages: the manifest says 20" in caplog.text


async def test_a_search_that_fails_is_500_in_json_and_the_next_one_works(bm25):
    gate = Gate()
    async with asgi_client(served_by(gate, bm25)) as client:
        await until(lambda: is_ready(client))
        gate.fails = True
        answer = await client.post("/retrieve", json={"queries": ["Ulm"]})
        assert (answer.status_code, answer.json()["error"]) == (500, "internal")
        assert "out of everything" not in answer.text
        gate.fails = False
        assert (await client.post("/retrieve", json={"queries": ["Ulm"]})).status_code == 200


OUTSTANDING = 'retrieval_outstanding{index="default"}'


def served_by(gate, bm25, **options):
    return create_app(
        lambda: IndexSource(bm25.manifest, bm25._passages, gate),
        options=EngineOptions(cache_size=0, **options),
    )


async def sample(client, line):
    """The value of one line of /metrics; 0.0 where it is not there yet."""
    page = (await client.get("/metrics")).text
    return next((float(row.split()[-1]) for row in page.splitlines() if row.startswith(line + " ")), 0.0)


async def test_a_full_queue_is_503_with_retry_after_at_once(bm25):
    async with held(bm25, max_queue=2) as (client, gate):
        taken = asyncio.create_task(client.post("/retrieve", json={"queries": ["Ulm", "Celle"]}))
        await until(lambda: sampled(client, OUTSTANDING, 2))
        answer = await client.post("/retrieve", json={"queries": ["Trier"]})
        assert (answer.status_code, answer.json()["error"]) == (503, "overloaded")
        assert int(answer.headers["retry-after"]) >= 1
        assert await sample(client, 'retrieval_rejections_total{index="default",reason="queue_full"}') == 1
        gate.go.set()
        assert (await taken).status_code == 200
        assert (await client.post("/retrieve", json={"queries": ["Trier"]})).status_code == 200


async def test_when_the_loop_is_late_what_would_be_refused_is_refused_unread(bm25):
    gate, watch = Gate(), LoopMonitor()
    app = served_by(gate, bm25, max_queue=2)
    async with asgi_client(app) as client:
        await until(lambda: is_ready(client))
        transport = httpx.ASGITransport(LoadSheddingMiddleware(app, watch, app.state.services))
        behind = httpx.AsyncClient(transport=transport, base_url="http://server")
        gate.go.clear()
        taken = asyncio.create_task(client.post("/retrieve", json={"queries": ["Ulm", "Celle"]}))
        await until(lambda: sampled(client, OUTSTANDING, 2))
        searches = ("/retrieve", "/queries", "/indexes/default/retrieve")
        for path in searches:  # the loop keeps up: bodies are read
            assert (await behind.post(path, json={"queries": 5})).status_code == 422
        assert (await behind.post("/retrieve", json={"queries": []})).status_code == 200
        assert not watch.is_overloaded
        watch.late_s = 1.0
        for path in searches:
            answer = await behind.post(path, json={"queries": 5})
            assert (answer.status_code, answer.json()["error"]) == (503, "overloaded")
            assert int(answer.headers["retry-after"]) >= 1
        assert (await behind.get("/health")).status_code == 200
        assert (await behind.post("/access", json={"urls": []})).status_code == 404
        assert (await behind.post("/indexes/other/retrieve", json={"queries": []})).status_code == 404
        gate.go.set()
        assert (await taken).status_code == 200
        assert (await behind.post("/retrieve", json={"queries": ["Ulm"]})).status_code == 200


async def test_the_loop_is_pressed_while_something_holds_it_up():
    watch = LoopMonitor()
    watching = asyncio.create_task(watch.watch())
    await asyncio.sleep(0)
    assert not watch.is_overloaded
    time.sleep(0.3)  # what is tested: a call that blocks the loop
    while not watch.is_overloaded:
        await asyncio.sleep(0)
    while watch.is_overloaded:
        await asyncio.sleep(0.01)
    watching.cancel()


async def test_the_loop_is_pressed_while_many_have_to_be_refused():
    watch = LoopMonitor()
    watching = asyncio.create_task(watch.watch())
    for _ in range(4):
        watch.count_refusable()
    assert not watch.is_overloaded
    watch.count_refusable()
    assert watch.is_overloaded
    while watch.is_overloaded:
        await asyncio.sleep(0.01)
    watching.cancel()


async def sampled(client, line, value):
    return await sample(client, line) == value


async def test_a_request_beyond_its_deadline_is_504_and_its_queued_work_is_dropped(bm25):
    async with held(bm25, deadline_s=0.2, max_batch=1) as (client, gate):
        answers = await asyncio.gather(
            *(client.post("/retrieve", json={"queries": [query]}) for query in ("Ulm", "Celle"))
        )
        assert [(answer.status_code, answer.json()["error"]) for answer in answers] == [(504, "deadline")] * 2
        assert await sample(client, 'retrieval_queue_length{index="default"}') == 0
        gate.go.set()
        await until(lambda: sampled(client, OUTSTANDING, 0))
        assert (await client.post("/retrieve", json={"queries": ["Ulm"]})).status_code == 200


async def leaver(app, path, body, closed, listened):
    """A request as the ASGI server delivers it, whose client closes the connection when ``closed`` is set.
    ``listened`` is set when the app has taken the request and listens whether the client is there."""
    messages = iter([{"type": "http.request", "body": json.dumps(body).encode()}])

    async def receive():
        for message in messages:
            return message
        listened.set()
        await closed.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        """Nobody reads it."""

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    scope |= {"scheme": "http", "client": None, "server": ("server", 80)}
    await app(scope | {"headers": [(b"content-type", b"application/json")]}, receive, send)


async def test_work_of_a_client_that_has_gone_is_dropped(bm25):
    gate, closed = Gate(), asyncio.Event()
    app = served_by(gate, bm25, max_batch=1)
    async with asgi_client(app) as client:
        await shut(gate, client)
        first = asyncio.create_task(client.post("/retrieve", json={"queries": ["Ulm"]}))
        await until(lambda: sampled(client, OUTSTANDING, 1))
        gone = asyncio.create_task(leaver(app, "/retrieve", {"queries": ["Celle"]}, closed, asyncio.Event()))
        await until(lambda: sampled(client, OUTSTANDING, 2))
        closed.set()
        await gone
        assert await sample(client, 'retrieval_dropped_total{index="default"}') == 1
        gate.go.set()
        assert (await first).status_code == 200


class GatedReranker(Reranker):
    """A cross-encoder that waits until it is let go, and notes what it was asked."""

    def __init__(self):
        self.entered, self.go, self.scored = threading.Event(), threading.Event(), []

    def score(self, pairs):
        self.entered.set()
        assert self.go.wait(30)
        self.scored += pairs
        return [0.0] * len(pairs)


async def test_a_look_up_that_was_given_up_still_holds_the_next_one_up(bm25, monkeypatch):
    gate, options = GatedReranker(), EngineOptions(deadline_s=0.5)
    monkeypatch.setattr(bm25, "documents", gate.score)
    async with asgi_client(create_app(lambda: bm25, options=options)) as client:
        await until(lambda: is_ready(client))
        for id_ in ("0", "1"):
            assert (await client.post("/documents", json={"ids": [id_]})).status_code == 504
        asyncio.get_running_loop().call_soon(gate.go.set)  # when the loop has withdrawn the second one
        assert (await client.post("/documents", json={"ids": ["2"]})).status_code == 200
    assert gate.scored == ["0", "2"]


async def test_what_a_client_that_has_gone_wanted_ranked_is_dropped(bm25):
    reranker, closed, listened = GatedReranker(), asyncio.Event(), asyncio.Event()
    app = create_app(lambda: bm25, reranker=reranker)
    async with asgi_client(app) as client:
        await until(lambda: is_ready(client))
        first = asyncio.create_task(client.post("/rerank", json={"query": "Ulm", "documents": ["a"]}))
        await until(lambda: asyncio.sleep(0.005, reranker.entered.is_set()))
        body = {"query": "Celle", "documents": ["b"]}
        gone = asyncio.create_task(leaver(app, "/rerank", body, closed, listened))
        await listened.wait()
        closed.set()
        await gone
        reranker.go.set()
        assert (await first).status_code == 200
        again = await client.post("/rerank", json={"query": "Trier", "documents": ["c"]})
        assert again.status_code == 200 and reranker.scored == [("Ulm", "a"), ("Trier", "c")]
