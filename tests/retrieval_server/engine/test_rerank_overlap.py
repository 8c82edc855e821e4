"""A reranked search keeps both stages at work, in this process and on Ray's replicas: seen by events."""

from __future__ import annotations

import asyncio
import importlib.util
import threading

import pytest

from retrieval_server.cluster.ray_serve import ShardedSource
from retrieval_server.determinism import Determinism, ProbeResult
from retrieval_server.folder.passages import Passage
from retrieval_server.search.reranker import RerankedSource, Reranker
from retrieval_server.source import ScoredPassage, SourceDescription, StagedSource

from ..running import engine_of

WAIT = 20  # seconds until a test is given up; nothing is ever slept
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs Ray Serve: pip install 'rag-r1[ray]'"
)


class Gate:
    """A place that can be shut, and tells who is in it."""

    def __init__(self):
        self.open = threading.Event()
        self.open.set()
        self.inside = self.most = 0
        self._changed = threading.Condition()

    def pass_through(self):
        with self._changed:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self._changed.notify_all()
        assert self.open.wait(WAIT)
        with self._changed:
            self.inside -= 1

    def holds(self, number):
        """Wait until so many are inside; False if they do not come."""
        with self._changed:
            return self._changed.wait_for(lambda: self.inside >= number, WAIT)


class Model(Reranker):
    """A cross-encoder whose place in the pipeline has a gate; it scores by the length of a passage."""

    def __init__(self):
        super().__init__("none")
        self._guarantee = Determinism.BITS
        self.gate = Gate()

    def _load(self):
        pass

    def _score(self, pairs):
        self.gate.pass_through()
        return [float(len(text)) for _, text in pairs]


class Replica:
    """A deployment whose calls run in threads of their own, as those of Ray do."""

    def __init__(self, answer):
        self.deployment_name, self.call, self.gate = "replica", self, Gate()
        self._answer = answer

    def remote(self, *arguments):
        self._arguments = arguments
        return Call(self, arguments)

    def answer(self, arguments):
        self.gate.pass_through()
        return self._answer(*arguments)


class Call:
    def __init__(self, replica, arguments):
        self._replica, self._arguments = replica, arguments

    def result(self, timeout_s):
        return self._replica.answer(self._arguments)


class Here(StagedSource):
    """A source in this process, with a gate in each stage."""

    description = SourceDescription("here", guarantee=Determinism.BITS)

    def __init__(self):
        self.first, self.second = Gate(), Gate()

    def warm_up(self):
        pass

    def prepare(self, queries):
        self.first.pass_through()
        return list(queries)

    def find(self, prepared, topks):
        self.second.pass_through()
        return [
            [ScoredPassage(Passage("a", "short"), 1.0), ScoredPassage(Passage("b", "longer"), 0.5)]
            for _ in prepared
        ]


def on_ray(at_once):
    encoder = Replica(lambda queries: (queries, ProbeResult(Determinism.BITS, "a")))
    shard = Replica(
        lambda vectors, topks: [[("a", "short", None, 1.0), ("b", "longer", None, 0.5)] for _ in vectors]
    )
    source = ShardedSource(SourceDescription("dense"), encoder, [shard], deadline_s=WAIT, replicas=at_once)
    return source, encoder.gate, shard.gate


def in_process():
    source = Here()
    return source, source.first, source.second


def running(source):
    """An engine that makes a batch of every query."""
    return engine_of(source, max_batch=1, max_wait_ms=0, cache_size=0)


def ids(answers):
    return [[hit.passage.id for hit in answer] for answer in answers]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(in_process, id="in process"),
        pytest.param(lambda: on_ray((1, 1)), id="on Ray", marks=needs_ray),
    ],
)
async def test_while_the_model_reads_the_next_batches_are_encoded_and_searched(make):
    source, first, second = make()
    model = Model()
    async with running(RerankedSource(source, model, 2)) as engine:
        tasks, came = [], []
        for query, place in (("one", model.gate), ("two", second), ("three", first)):
            place.open.clear()
            tasks.append(asyncio.create_task(engine.search([query], 2)))
            came.append(await asyncio.to_thread(place.holds, 1))
        at_once = [place.inside for place in (model.gate, second, first)]
        for place in (model.gate, second, first):
            place.open.set()
        assert all(came) and at_once == [1, 1, 1]
        assert [ids(await task) for task in tasks] == [[["b", "a"]]] * 3


@needs_ray
@pytest.mark.parametrize("at_once", [(1, 1), (3, 2)], ids=str)
async def test_every_replica_has_a_batch_while_the_model_reads_and_none_has_two(at_once):
    source, encoders, shards = on_ray(at_once)
    model = Model()
    async with running(RerankedSource(source, model, 2)) as engine:
        encoders.most = shards.most = 0
        encoders.open.clear()
        model.gate.open.clear()
        tasks = [asyncio.create_task(engine.search([f"query {i}"], 1)) for i in range(12)]
        encoding = await asyncio.to_thread(encoders.holds, at_once[0])
        encoders.open.set()
        reading = await asyncio.to_thread(model.gate.holds, 1)
        shards.open.clear()  # what is searched for from now on stays there
        model.gate.open.set()
        searching = await asyncio.to_thread(shards.holds, at_once[1])
        shards.open.set()
        assert encoding and reading and searching
        assert [ids(await task) for task in tasks] == [[["b"]]] * 12
    assert (encoders.most, shards.most) == at_once


def test_the_model_reads_for_its_callers_in_the_order_in_which_they_come():
    model, order = Model(), []
    model.gate.open.clear()

    class Noting(list):
        def __iter__(self):
            order.append(self[0][0])
            return super().__iter__()

    callers = []
    for number in range(8):
        caller = threading.Thread(target=model.score, args=(Noting([(number, "text")]),))
        caller.start()
        callers.append(caller)
        while model._thread._work_queue.qsize() < number:
            pass
        assert model.gate.holds(1)
    model.gate.open.set()
    for caller in callers:
        caller.join(WAIT)
    assert order == list(range(8))
