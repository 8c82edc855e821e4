"""Shards together answer exactly as the whole index does."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.cluster.merge import merge
from retrieval_server.errors import UserError
from retrieval_server.folder.passages import Passage
from retrieval_server.folder.shard_set import read_shards, shard_folder
from retrieval_server.indexing.builder import build_hybrid
from retrieval_server.indexing.split_index import split_index
from retrieval_server.search.index_source import IndexSource
from retrieval_server.source import ScoredPassage, round_score

from ..builders import PASSAGES, RIVERS, TOWNS, build, edit_json, write_jsonl

QUERIES = [f"Which river is {town} on?" for town in TOWNS] + [f"barges on the {river}" for river in RIVERS]


@pytest.fixture(scope="module")
def doubled(tmp_path_factory):
    """A corpus in which every text stands twice, so that equal scores lie in different shards."""
    rows = [row | {"id": f"{row['id']}-{copy}"} for copy in "ab" for row in PASSAGES]
    return write_jsonl(tmp_path_factory.mktemp("corpus") / "doubled.jsonl", rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend, factory", [("bm25", "Flat"), ("dense", "Flat"), ("dense", "IVF4,Flat")], ids=str
)
@pytest.mark.parametrize("shards", [1, 3, 7])
def test_the_merged_results_of_all_shards_are_the_whole_indexs(
    doubled, tiny_bge, tmp_path, backend, factory, shards
):
    folder = build(doubled, tmp_path / "whole", backend, encoder=str(tiny_bge), factory=factory)
    split_index(folder, tmp_path / "parts", shards, progress=False)
    whole = IndexSource.open(folder, device="cpu")
    parts = [IndexSource.open(path, device="cpu") for path, _ in read_shards(tmp_path / "parts")]
    assert len(parts) == shards and sum(part.manifest.count for part in parts) == 40
    prepared = whole.prepare(QUERIES)
    for topk in (1, 5, 40):
        topks = [topk] * len(QUERIES)
        expected = whole.find(prepared, topks)
        results = [
            part.find_unrounded(prepared if backend == "dense" else part.prepare(QUERIES), topks)
            for part in parts
        ]
        assert [merge(hits, topk) for hits in zip(*results, strict=True)] == expected


@given(
    scores=st.lists(st.sampled_from([0.25, 0.5, 0.5 + 1e-9, 0.5 + 2e-9, 0.75]), max_size=20),
    borders=st.lists(st.integers(0, 20), max_size=3),
    topk=st.integers(1, 25),
)
def test_merging_is_sorting_with_equal_scores_in_row_order(scores, borders, topk):
    rows = [ScoredPassage(Passage(str(row), ""), score) for row, score in enumerate(scores)]
    best_first = sorted(rows, key=lambda hit: -hit.score)
    cuts = [0, *sorted(min(border, len(rows)) for border in borders), len(rows)]
    parts = [
        [hit for hit in best_first if first <= int(hit.passage.id) < stop][:topk]
        for first, stop in zip(cuts, cuts[1:], strict=False)
    ]
    assert merge(parts, topk) == tuple(map(round_score, best_first[:topk]))


def test_what_would_not_answer_as_the_whole_is_refused(doubled, tiny_bge, bm25_index, tmp_path):
    graph = build(doubled, tmp_path / "graph", "dense", encoder=str(tiny_bge), factory="HNSW4")
    with pytest.raises(UserError, match="HNSW4"):
        split_index(graph, tmp_path / "out", 2)
    for shards in (0, 21):
        with pytest.raises(UserError, match="--shards"):
            split_index(bm25_index, tmp_path / "out", shards)
    split_index(bm25_index, tmp_path / "out", 2, progress=False)
    with pytest.raises(UserError, match="exists"):
        split_index(bm25_index, tmp_path / "out", 2)
    (tmp_path / "link").symlink_to("nothing")
    with pytest.raises(UserError, match="link exists"):
        split_index(bm25_index, tmp_path / "link", 2)
    with pytest.raises(UserError, match="a shard itself"):
        split_index(shard_folder(tmp_path / "out", 0, 2), tmp_path / "again", 2)


@pytest.mark.parametrize("preset", [None, "small"])
def test_a_hybrid_is_refused_whatever_its_members_are(corpus, bm25_index, tiny_bge, tmp_path, preset):
    dense = build(corpus, tmp_path / "dense", "dense", encoder=str(tiny_bge), preset=preset)
    build_hybrid([dense, bm25_index], tmp_path / "both")
    with pytest.raises(UserError, match="both: a hybrid index; dense and bm25 indexes can be split"):
        split_index(tmp_path / "both", tmp_path / "shards", 2, progress=False)
    assert not list(tmp_path.glob("shards*"))


def test_a_set_with_a_missing_or_foreign_shard_is_refused(bm25_index, tmp_path):
    assert read_shards(bm25_index) == [(bm25_index, IndexSource.open(bm25_index).manifest)]
    split_index(bm25_index, tmp_path / "three", 3, progress=False)
    second = shard_folder(tmp_path / "three", 1, 3)
    kept = (second / "manifest.json").read_text()
    for change in (
        {"whole_sha256": "another"},
        {"first_row": 5},
        {"number": -1, "of": 10**15},
        {"number": 5},
    ):
        (second / "manifest.json").write_text(kept)
        edit_json(second / "manifest.json", lambda data, change=change: data["shard"].update(change))
        with pytest.raises(UserError, match="rag-r1 index split"):
            read_shards(tmp_path / "three")
    shutil.rmtree(second)
    with pytest.raises(UserError, match=r"\[0, 2\]"):
        read_shards(tmp_path / "three")
    with pytest.raises(UserError, match="rag-r1 index build"):
        read_shards(tmp_path)
