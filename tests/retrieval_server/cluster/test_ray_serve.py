"""Encoders and shards on Ray: the same answers, and none lost when a shard's process is killed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from retrieval_server.cluster.ray_options import RayOptions
from retrieval_server.cluster.ray_serve import ShardedSource
from retrieval_server.determinism import Determinism, ProbeResult
from retrieval_server.errors import SearchFailedError
from retrieval_server.folder.passages import Passage
from retrieval_server.indexing.split_index import split_index
from retrieval_server.search.reranker import RerankedSource, Reranker
from retrieval_server.source import ScoredPassage, SourceDescription

from ..builders import RIVERS, TOWNS
from ..running import server_process
from ..same_answers import assert_same_answers, wired

QUERIES = [f"Which river is {town} on?" for town in TOWNS] + [f"barges on the {river}" for river in RIVERS]
HAS_RAY = all(importlib.util.find_spec(name) for name in ("ray", "grpc_reflection"))
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="needs Ray Serve: pip install 'rag-r1[ray]'")


def test_replicas_are_a_number_or_a_range(monkeypatch):
    from retrieval_server.command_line import parse
    from retrieval_server.serve.options import ServeCommand

    args = parse(
        ServeCommand,
        "",
        ["--index", "i", "--serve", "ray", "--encoder-replicas", "1:4", "--shard-replicas", "2"],
    )
    assert args.ray == RayOptions(encoder_replicas=(1, 4), shard_replicas=(2, 2))


class Handle:
    """A deployment in this process: fails as often as told, then answers."""

    def __init__(self, answer, failures=()):
        self.deployment_name, self.call = "shard-1", self
        self._answer, self._failures = answer, list(failures)

    def remote(self, *_):
        return self

    def result(self, timeout_s):
        if self._failures:
            raise self._failures.pop(0)
        return self._answer


def sharded(*handles, deadline_s=30.0):
    return ShardedSource(SourceDescription("bm25"), None, handles, deadline_s=deadline_s)


@needs_ray
def test_a_call_that_died_with_its_replica_is_made_again_until_the_deadline():
    from ray.exceptions import ActorDiedError, ActorUnavailableError

    whole, dying = Handle([[("a", "A", None, 0.5)]]), [ActorDiedError(), ActorUnavailableError("gone", None)]
    results = sharded(whole, Handle([[("b", "B", None, 0.75)]], dying)).find(["x"], [2])
    assert results == [(ScoredPassage(Passage("b", "B"), 0.75), ScoredPassage(Passage("a", "A"), 0.5))]
    with pytest.raises(SearchFailedError, match="shard-1") as failure:
        sharded(whole, Handle([], [ActorDiedError()] * 3), deadline_s=0.01).find(["x"], [2])
    assert failure.value.status == 503 and failure.value.retry_after


@needs_ray
def test_an_error_of_the_search_itself_is_not_asked_for_again():
    with pytest.raises(ZeroDivisionError):
        sharded(Handle([], [ZeroDivisionError()])).find(["x"], [2])


def test_the_guarantee_is_that_of_every_replica_of_the_encoder_that_has_answered():
    class Replicas(Handle):
        """An encoder of which each call gets the next replica."""

        def __init__(self, probes):
            super().__init__(None)
            self._probes = iter(probes)

        def result(self, timeout_s):
            return [[0.0]], next(self._probes)

    first, second = ProbeResult(Determinism.BITS, "a"), ProbeResult(Determinism.BITS, "b")
    source = ShardedSource(SourceDescription("dense"), Replicas([first, first, second]), [], deadline_s=1.0)
    guarantees = [source.description.guarantee]
    for _ in range(3):
        assert source.prepare(["x"]) == [[0.0]]
        guarantees.append(source.description.guarantee)
    assert guarantees == [None, "bits", "bits", "order"], "two processors that multiply differently"
    assert sharded().description.guarantee == "bits", "BM25 multiplies nothing"


@contextmanager
def server(*flags, **environment):
    """A client of a server in a process of its own. One for all requests: making one takes 50 ms."""
    with (
        server_process(*flags, **environment) as started,
        httpx.Client(base_url=started.url, timeout=600) as client,
    ):
        yield client


def ask(client, queries, route="/retrieve"):
    body = {"queries": queries, "topk": 5, "return_scores": True}
    answer = client.post(route, json=body)
    assert answer.status_code == 200, answer.text
    return [wired(hits) for hits in answer.json()["result"]]


def replicas(temporary, name):
    """The processes of a deployment's replicas, of the Ray that keeps its files in ``temporary`` only."""
    mark, results = f"RAY_TMPDIR={temporary}".encode(), set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"ServeReplica" in title and name.encode() in title and mark in environment.split(b"\0"):
            results.add(int(folder.name))
    return results


@needs_ray
@pytest.mark.full
def test_three_shards_answer_as_the_whole_and_one_killed_loses_no_request(dense_index, bm25_index, tmp_path):
    """Of an index of each kind, on one Ray: a cluster for each would cost as much as the test itself."""
    whole = {"bm25": bm25_index, "dense": dense_index}
    for kind, index in whole.items():
        split_index(index, tmp_path / kind, 3, progress=False)
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: Ray makes socket addresses of it

    def flags(folders):
        named = [flag for kind, folder in folders.items() for flag in ("--index", f"{kind}={folder}")]
        return (*named, "--device", "cpu", "--cache-size", 0)

    def answers(client, kind, queries=QUERIES):
        return ask(client, queries, f"/indexes/{kind}/retrieve")

    try:
        with server(*flags(whole)) as client:
            expected = {kind: answers(client, kind) for kind in whole}
            alone = client.get("/ready").json()["indexes"]
        # A process that starts on a busy machine may take minutes; the default deadline is for real ones.
        sharded = (*flags({kind: tmp_path / kind for kind in whole}), "--deadline", 600)
        with server("--serve", "ray", *sharded, RAY_TMPDIR=temporary) as client:
            ready = client.get("/ready").json()["indexes"]
            for kind in whole:
                assert ready[kind]["passages"] == 20
                assert ready[kind]["guarantee"] == alone[kind]["guarantee"]
                assert_same_answers(answers(client, kind), expected[kind], ready[kind]["guarantee"])
            before = replicas(temporary, "shard-1")
            assert len(before) == len(whole), "one of each index"
            restarted = threading.Event()

            def hammer(kind, number):
                number_asked = 0
                while not restarted.is_set() or number_asked < 20:
                    position = (number + number_asked) % len(QUERIES)
                    results = answers(client, kind, [QUERIES[position]])
                    assert_same_answers(results, [expected[kind][position]], ready[kind]["guarantee"])
                    number_asked += 1
                return number_asked

            with ThreadPoolExecutor(8 * len(whole)) as clients:
                hammering = [clients.submit(hammer, kind, number) for kind in whole for number in range(8)]
                for process in before:
                    os.kill(process, signal.SIGKILL)
                while len(replicas(temporary, "shard-1") - before) < len(whole):
                    assert not any(client.done() for client in hammering), "a request was lost"
                    time.sleep(0.1)
                restarted.set()
                assert min(client.result(timeout=600) for client in hammering) >= 20
            for kind in whole:
                assert client.post("/reload", json={"index": kind}).json()["index_version"] == 2
                assert_same_answers(answers(client, kind), expected[kind], ready[kind]["guarantee"])
        assert not replicas(temporary, "shard-")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@needs_ray
@pytest.mark.full
def test_a_reranked_search_answers_on_ray_as_it_does_here(
    bm25, bm25_index, make_cross_encoder, serve, tmp_path
):
    import torch

    split_index(bm25_index, tmp_path / "two", 2, progress=False)
    model = make_cross_encoder(1)
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: Ray makes socket addresses of it
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)  # as in the server's process
        with serve(lambda: RerankedSource(bm25, Reranker(str(model), "cpu"), 5)) as client:
            expected = ask(client, QUERIES)
        flags = ("--index", tmp_path / "two", "--rerank", model, "--rerank-depth", 5, "--device", "cpu")
        flags += ("--cache-size", 0, "--deadline", 600, "--shard-replicas", 2)
        with server("--serve", "ray", *flags, RAY_TMPDIR=temporary) as client:
            ready = client.get("/ready").json()
            with ThreadPoolExecutor(8) as clients:
                results = [answer for (answer,) in clients.map(lambda query: ask(client, [query]), QUERIES)]
        assert ready["backend"] == "bm25+rerank" and len(replicas(temporary, "shard-")) == 0
        assert_same_answers(results, expected, ready["guarantee"])
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(temporary, ignore_errors=True)
