"""Elasticsearch, in ArtSearch's shape; its answers are recorded ones."""

import pytest

from rag_r1.protocols import Failure
from rag_r1.tools import make_tool
from rag_r1.tools.elasticsearch import WikiSearcher
from rag_r1.tools.http import HttpFailure
from tests.fakes.json_server import JsonStub

#: What Elasticsearch 8 answers to a search.
RECORDED = {
    "took": 3,
    "timed_out": False,
    "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
    "hits": {
        "total": {"value": 2, "relation": "eq"},
        "max_score": 7.1,
        "hits": [
            {
                "_index": "wiki",
                "_id": "12",
                "_score": 7.1,
                "_source": {
                    "url": "https://en.wikipedia.org/wiki/Ulm",
                    "title": "Ulm",
                    "text": "Ulm is a city.",
                },
            },
            {"_index": "wiki", "_id": "13", "_score": 1.0, "_source": {"title": "Ulm Minster", "text": None}},
        ],
    },
}


async def test_it_searches_title_and_text_and_gives_id_url_title_text():
    with JsonStub(lambda request: RECORDED) as server:
        searcher = WikiSearcher("wiki", server.url, key="SECRET")
        results = await searcher.search("Ulm", size=5)
        await searcher.close()
    assert results == [
        {"id": "12", "url": "https://en.wikipedia.org/wiki/Ulm", "title": "Ulm", "text": "Ulm is a city."},
        {"id": "13", "url": "", "title": "Ulm Minster", "text": ""},
    ]
    (request,) = server.asked
    assert request.path == "/wiki/_search" and request.headers["Authorization"] == "ApiKey SECRET"
    assert request.body == {
        "query": {"multi_match": {"query": "Ulm", "fields": ["title", "text"]}},
        "size": 5,
    }


async def test_the_tool_shows_its_documents_and_a_failed_search_costs_itself_alone():
    def answer(request):
        return (500, "no") if request.body["query"]["multi_match"]["query"] == "bad" else RECORDED

    with JsonStub(answer) as server:
        tool = make_tool("wiki", {"tool": "elasticsearch", "url": server.url, "index": "wiki", "topk": 1})
        good, bad = await tool.call([{"query": "good"}, {"query": "bad"}])
        await tool.close()
    assert [(item.id, item.contents) for item in good] == [("12", '"Ulm"\nUlm is a city.')]
    assert isinstance(bad, Failure) and (bad.kind, bad.detail) == ("retriever", "HttpFailure: HTTP 500")


@pytest.mark.parametrize("answer", [[], {"hits": 3}, {"hits": {"hits": [3]}}, (200, "{"), (200, "[" * 9999)])
async def test_an_answer_of_another_shape_is_a_failure(answer):
    with JsonStub(lambda request: answer) as server:
        searcher = WikiSearcher("wiki", server.url)
        with pytest.raises(HttpFailure):
            await searcher.search("x")
        await searcher.close()


@pytest.mark.parametrize("key", ["SEC\nRET", "SECRÉT", "SEC RET"])
def test_a_key_that_no_header_can_have_is_refused_and_not_shown(key, monkeypatch):
    monkeypatch.setenv("ES_KEY", key)
    with pytest.raises(ValueError, match=r"^\$ES_KEY has characters that a key cannot have") as refused:
        make_tool("wiki", {"tool": "elasticsearch", "index": "wiki", "key_env": "ES_KEY"})
    assert "SEC" not in str(refused.value)
