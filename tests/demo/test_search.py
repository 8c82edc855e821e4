"""The in-process BM25 must rank as the retrieval server does; only a test may import both."""

from __future__ import annotations

from rag_r1.demo.search import WorldSearch
from rag_r1.demo.world import demo_data
from retrieval_server.indexing.options import BM25Options
from retrieval_server.search.bm25 import BM25Backend, build_bm25


def test_ranks_as_the_retrieval_server_with_its_default_settings(tmp_path):
    data = demo_data(0, train=40, val=40)
    texts = [passage["contents"] for passage in data.passages]
    section = BM25Options().section()
    build_bm25(texts, section, tmp_path, progress=False)
    server = BM25Backend(tmp_path, section, len(texts))
    search = WorldSearch(data.passages, topk=3)
    queries = [lookup.entity for question in data.train + data.val for lookup in question.lookups]
    queries += ["the town of", "born", "zzz", "", *(question.text for question in data.val)]
    for query, hits, documents in zip(
        queries, server.search(queries, 3), search.results(queries), strict=True
    ):
        assert [data.passages[hit.row]["id"] for hit in hits] == [document.id for document in documents], (
            query
        )


def test_a_query_without_a_known_word_finds_nothing():
    search = WorldSearch([{"id": "0", "contents": '"A"\nThe town lies.'}])
    assert search.results(["zzz", "the", ""]) == [[], [], []]
