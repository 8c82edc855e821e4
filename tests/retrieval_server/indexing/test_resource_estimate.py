"""The times that a build with a preset announces come from work that was really done."""

from __future__ import annotations

import pytest

from retrieval_server.folder.passages import PassageStore
from retrieval_server.indexing import resource_estimate
from retrieval_server.indexing.presets import GRAPH_FROM, PRESETS, cells_for
from retrieval_server.indexing.resource_estimate import estimate_times, print_estimate

DIMENSION = 32
#: Enough passages for a graph over the cells.
MANY = 400_000


class ManyTimes:
    """The passages of a store again and again, ``count`` in all."""

    def __init__(self, store: PassageStore, count: int):
        self._store, self._count = store, count

    def __len__(self) -> int:
        return self._count

    def iter_contents(self):
        while True:
            yield from self._store.iter_contents()


@pytest.fixture
def store(dense_index):
    return PassageStore(dense_index / "passages.arrow")


@pytest.mark.parametrize("preset", ["exact", "balanced", "small"])
def test_encoding_is_timed_where_passages_are_encoded_and_only_there(store, encoder, monkeypatch, preset):
    monkeypatch.setattr(resource_estimate, "_MIN_TIMED_PASSAGES", 1)
    encode = estimate_times(PRESETS[preset], store, DIMENSION, encoder, 64, encodes=True)
    read = estimate_times(PRESETS[preset], store, DIMENSION, encoder, 64, encodes=False)
    assert encode.encode_s > 0 and read.encode_s is None
    assert (encode.index_s > 0) == (read.index_s > 0) == (preset != "exact")


@pytest.mark.parametrize("preset", ["balanced", "small"])
@pytest.mark.parametrize("passages, graph", [(20, False), (20_000, False), (MANY, True)])
def test_indexing_is_timed_with_and_without_a_graph_over_the_cells(
    store, encoder, monkeypatch, tmp_path, capsys, preset, passages, graph
):
    assert (cells_for(passages) >= GRAPH_FROM) == graph
    monkeypatch.setattr(resource_estimate, "_MIN_TIMED_PASSAGES", 1)
    searched = []
    look = resource_estimate.widen_cell_search
    monkeypatch.setattr(
        resource_estimate, "widen_cell_search", lambda index: (searched.append(index), look(index))
    )
    store = ManyTimes(store, passages)
    needs = estimate_times(PRESETS[preset], store, DIMENSION, encoder, 64, encodes=True)
    assert needs.index_s > 0 and needs.encode_s > 0
    assert bool(searched) == graph, "only then is a search in a graph timed"
    print_estimate(PRESETS[preset], passages, DIMENSION, needs, tmp_path)
    printed = capsys.readouterr().out
    assert "time to encode        about " in printed and "time to index         about " in printed


def test_below_a_thousand_passages_nothing_is_timed(store, encoder):
    needs = estimate_times(PRESETS["small"], store, DIMENSION, encoder, 64, encodes=True)
    assert needs.encode_s is None and needs.index_s == 0.0
