"""Ten reloads of a dense index in a real server, between two encoders, while clients ask it without a pause.

No request fails. Each answer is one index's alone: its texts are signed with its name, and its scores are
those of the index where it is opened by itself. (The vector of one encoder against the rows of the other
would give other scores; as both have the same dimension, it would not be an error.) After the last reload all
answers are the last index's, also those that a client of rag_r1 had kept.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from rag_r1.iterate.plan import ServerSpec
from rag_r1.iterate.server import LoopServer
from rag_r1.protocols import Failure
from rag_r1.tools import RetrievalClient, RetrieverConfig
from retrieval_server.determinism import Determinism
from retrieval_server.search.index_source import IndexSource
from retrieval_server.source import round_score

from ..builders import RIVERS, TOWNS, shelf_of
from ..same_answers import Answer, assert_same_answers, wired

pytestmark = [pytest.mark.slow, pytest.mark.full]

RELOADS, CLIENTS, TOPK = 10, 8, 4
#: Seconds that a request may take, here and in the server: a busy machine is no failure.
PATIENCE = 600
NAMES = ("red", "blue")
QUERIES = [f"{town} {river}" for town in TOWNS for river in RIVERS]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory, make_bert) -> Path:
    """A folder with the indexes ``red`` and ``blue``, of an encoder each."""
    encoders = [str(make_bert(model, seed=i)) for i, model in enumerate(("e5-base-v2", "bge-small-en-v1.5"))]
    options = {
        name: {"backend": "dense", "encoder": path} for name, path in zip(NAMES, encoders, strict=True)
    }
    return shelf_of(tmp_path_factory.mktemp("shelf"), **options)


class Expected:
    """What each index answers when it is opened alone, by its name and the query."""

    def __init__(self, shelf: Path) -> None:
        self.answers = {name: dict(zip(QUERIES, alone(shelf / name), strict=True)) for name in NAMES}

    def check(self, name: str, query: str, answer: Answer) -> None:
        """Is this the answer of that index?"""
        assert_same_answers([answer], [self.answers[name][query]], Determinism.ORDER)


def alone(index: Path) -> list[Answer]:
    """The answers to all queries, in the form of ``wired``."""
    source = IndexSource.open(index, device="cpu")
    try:
        return [
            [(document(hit.passage.id, hit.passage.contents), round_score(hit).score) for hit in hits]
            for hits in source.search(QUERIES, TOPK)
        ]
    finally:
        source.close()


def document(name: str, contents: str) -> tuple[tuple[str, str], ...]:
    """How ``wired`` tells documents apart."""
    return (("contents", contents), ("id", name))


def connected(url: str) -> HTTPConnection:
    return HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)


def ask(connection: HTTPConnection, queries: list[str]) -> tuple[int, list[list[dict]]]:
    """The version of the index that has answered, and the documents for each query."""
    body = json.dumps({"queries": queries, "topk": TOPK, "return_scores": True})
    connection.request("POST", "/retrieve", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, (answer.status, text)
    result = json.loads(text)["result"]
    assert len(result) == len(queries)
    return int(answer.headers["X-Index-Version"]), result


def signed(text: str) -> str:
    return text.rpartition("(")[2].rstrip(")")


class Load:
    """Clients that ask without a pause until they are told to end."""

    def __init__(self, url: str, expected: Expected):
        self.url, self.expected, self.ends = url, expected, threading.Event()
        #: Requests answered, by client and version of the index.
        self.answered = [Counter[int]() for _ in range(CLIENTS)]

    @property
    def total(self) -> int:
        return sum(counts.total() for counts in list(self.answered))

    def run(self, number: int) -> None:
        """A client with a connection of its own, and three queries in a request."""
        with closing(connected(self.url)) as connection:
            place = number
            while not self.ends.is_set():
                queries = [QUERIES[(place + step) % len(QUERIES)] for step in (0, 31, 62)]
                version, result = ask(connection, queries)
                for query, hits in zip(queries, result, strict=True):
                    self.expected.check(NAMES[(version + 1) % 2], query, wired(hits))
                self.answered[number][version] += 1
                place += CLIENTS

    def has_answers_of(self, version: int) -> bool:
        """Has each client an answer of this version?"""
        return all(counts[version] for counts in self.answered)


class Agent:
    """Searches through the client of rollouts, with its cache, and no second attempt that would hide a
    failure: two queries that it knows, and one that is new."""

    def __init__(self, url: str, expected: Expected):
        self.client = RetrievalClient(RetrieverConfig(url=url, topk=TOPK, retries=0, timeout_s=PATIENCE))
        self.expected, self.searches, self.ends = expected, 0, False

    async def run(self) -> None:
        while not self.ends:
            await self.search(*(QUERIES[(self.searches + step) % len(QUERIES)] for step in (0, 50)))

    async def search(self, *queries: str) -> set[str]:
        """The names of the indexes that have answered."""
        self.searches += 1
        *results, new = await self.client.search([*queries, f"{TOWNS[0]} {self.searches}"])
        assert not any(isinstance(item, Failure) for item in (*results, new)), self.client.stats
        [last] = {signed(item.contents) for item in new}
        names = {last}
        for query, documents in zip(queries, results, strict=True):
            [name] = {signed(item.contents) for item in documents}
            answer = [(document(item.id, item.contents), item.score) for item in documents]
            self.expected.check(name, query, answer)
            names.add(name)
        return names


def order(shelf: Path, url: str, number: int) -> None:
    """The next index: every other time as `rag-r1 iterate` orders it, which also compares /ready with the
    manifest."""
    index = shelf / NAMES[number % 2]
    if number % 2:
        with LoopServer(ServerSpec(url=url), shelf) as service:
            service.serve(index)
        return
    answer = httpx.post(url + "/reload", json={"path": str(index)}, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text


@dataclass
class Exchanges:
    """What happened meanwhile: requests and searches that were answered from each order until its end."""

    requests: list[int] = field(default_factory=list)
    searches: list[int] = field(default_factory=list)


async def exchanged_under_load(shelf: Path, url: str, version: int, load: Load, agent: Agent) -> Exchanges:
    """Ten reloads, the next one as soon as every client has an answer of the last. Raises what a client has
    raised. `version`: that which is served before."""
    results = Exchanges()
    with ThreadPoolExecutor(CLIENTS) as threads:
        clients = [threads.submit(load.run, number) for number in range(CLIENTS)]
        searching = asyncio.create_task(agent.run())

        async def all_have_answers_of(version: int) -> bool:
            """False if a client has ended, which it does only if something is wrong."""
            before = agent.searches
            while not (load.has_answers_of(version) and agent.searches > before + 1):
                if searching.done() or any(client.done() for client in clients):
                    return False
                await asyncio.sleep(0.005)
            return True

        try:
            for number in range(1, RELOADS + 1):
                if not await all_have_answers_of(version):
                    break
                requests, searches = load.total, agent.searches
                await asyncio.to_thread(order, shelf, url, number)
                results.requests.append(load.total - requests)
                results.searches.append(agent.searches - searches)
                version += 1
            await all_have_answers_of(version)
        finally:
            load.ends.set()
            agent.ends = True
        await searching
        for client in clients:
            client.result()
    return results


async def test_no_request_fails_during_ten_reloads_and_each_answer_is_one_indexs_alone(shelf, start_server):
    expected = Expected(shelf)
    red, blue = (expected.answers[name] for name in NAMES)
    assert all(red[query][0][1] != pytest.approx(blue[query][0][1], abs=1e-3) for query in QUERIES)
    # Without the server's cache every query of a request is with the encoder when the index is exchanged.
    flags = ("--index", shelf / "red", "--device", "cpu", "--cache-size", "0", "--deadline", str(PATIENCE))
    with start_server(*flags) as server:
        first, last = 1, 1 + RELOADS  # the versions that are served now, and at the end
        load, agent = Load(server.url, expected), Agent(server.url, expected)
        try:
            results = await exchanged_under_load(shelf, server.url, first, load, agent)
            assert all(set(counts) == set(range(first, last + 1)) for counts in load.answered)
            assert sum(results.requests) > 0 and sum(results.searches) > 0, "no request came during a reload"
            with closing(connected(server.url)) as connection:
                for query in QUERIES:
                    version, [hits] = ask(connection, [query])
                    assert version == last
                    expected.check("red", query, wired(hits))
            for query in QUERIES:
                assert await agent.search(query) == {"red"}, "what the client had kept is not shown any more"
        finally:
            await agent.client.close()
        page = httpx.get(server.url + "/metrics", timeout=PATIENCE).text.splitlines()
    assert 'retrieval_outstanding{index="default"} 0.0' in page
    assert f'retrieval_reloads_total{{index="default",outcome="done"}} {RELOADS}.0' in page
    counted = [line for line in page if line.startswith('retrieval_requests_total{route="/retrieve"')]
    assert len(counted) == 1 and 'status="200"' in counted[0]
