"""Threads by the size of a batch."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval_server.cluster.replicas import QueryEncoder
from retrieval_server.determinism import Determinism, ProbeResult
from retrieval_server.encode.encoder import Encoder
from retrieval_server.folder.manifest import read_manifest
from retrieval_server.search.options import OpenOptions
from retrieval_server.search.threads import ThreadCount, encoder_threads, probe_encoder


@pytest.mark.parametrize(
    "alone, together, expected",
    [(None, None, []), (1, None, [1, 7, 7]), (None, 3, [7, 3, 3]), (1, 2, [1, 2, 2])],
)
def test_a_query_alone_and_a_batch_have_their_own_numbers(alone, together, expected):
    numbers = []
    threads = ThreadCount(numbers.append, lambda: 7, alone, together)
    for queries in (1, 2, 64):
        threads.use_for(queries)
    assert numbers == expected
    assert threads.differs == (alone != together)


def test_the_usual_number_is_the_one_from_before_any_was_set():
    """A second index in the process, another name or after a reload, and a number that all of it shares."""
    number = [4]

    def usual() -> int:
        return number[0]

    for _ in range(3):
        threads = ThreadCount(lambda numbers: number.__setitem__(0, numbers), usual, 1, None)
        threads.use_for(8)
        assert number == [4]
        threads.use_for(1)
        assert number == [1]


class Encodes:
    """An encoder that remembers torch's threads when it was probed and when it encoded."""

    on_gpu = False

    def __init__(self, fallback: Determinism = Determinism.ORDER):
        self.counts, self.fallback = [], fallback

    @property
    def probed(self) -> ProbeResult:
        self.counts.append(torch_threads())
        return ProbeResult(Determinism.BITS, "hash", self.fallback)

    def encode_queries(self, queries):
        self.counts.append(torch_threads())
        return np.zeros((len(queries), 8), np.float32)


def torch_threads() -> int:
    import torch

    return torch.get_num_threads()


@pytest.fixture
def restored():
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "batch, alone, promised", [(2, 2, Determinism.BITS), (2, 1, Determinism.ORDER), (3, None, None)]
)
def test_what_is_promised_was_probed_with_the_threads_of_a_batch(batch, alone, promised, restored):
    options, encoder = OpenOptions(encode_threads=batch, encode_threads_alone=alone), Encodes()
    results = probe_encoder(encoder, encoder_threads(options))
    assert encoder.counts == [batch]
    if promised is not None:
        assert results == ProbeResult(promised, "hash")


def test_in_16_or_8_bits_nothing_is_promised_where_a_query_alone_has_other_threads(restored):
    options = OpenOptions(encode_threads=2, encode_threads_alone=1)
    results = probe_encoder(Encodes(fallback=Determinism.NONE), encoder_threads(options))
    assert results.guarantee is Determinism.NONE


def test_a_replica_of_the_encoder_on_ray_has_the_threads_of_the_command(dense_index, restored, monkeypatch):
    encoder = Encodes()
    monkeypatch.setattr(Encoder, "open", lambda *_: encoder)
    monkeypatch.setattr("retrieval_server.cluster.replicas.trim_heap_regularly", lambda: None)
    section = read_manifest(dense_index).dense.encoder.model_dump()
    replica = QueryEncoder(section, OpenOptions(encode_threads=3, encode_threads_alone=2))
    assert replica.call(["a"])[1].guarantee is Determinism.ORDER
    replica.call(["a", "b"])
    assert encoder.counts == [3, 2, 3]
