"""A tiny cross-encoder of random weights, made in conftest.py; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from retrieval_server.determinism import TIE, Determinism
from retrieval_server.errors import UserError
from retrieval_server.search.reranker import RerankedSource, Reranker
from retrieval_server.serve.app import IndexOpener
from retrieval_server.serve.options import ServeCommand
from retrieval_server.server.reload import IndexLocation

from ..same_answers import assert_same_answers, plain, wired

QUESTIONS = ["Which river lies Ulm on?", "barges with timber", "Worms"]


@pytest.fixture(scope="session")
def reranker(make_cross_encoder) -> Reranker:
    loaded = Reranker(str(make_cross_encoder(1)), "cpu")
    loaded.load()
    return loaded


@pytest.fixture(scope="session")
def texts(bm25):
    return [bm25._passages[row].contents for row in range(20)]


@pytest.mark.slow
def test_scores_are_those_of_the_model(reranker, texts):
    from sentence_transformers import CrossEncoder

    pairs = [(QUESTIONS[0], text) for text in texts]
    expected = [CrossEncoder(reranker.name, device="cpu").predict([pair])[0] for pair in pairs]
    scores = reranker.score(pairs)
    assert scores == pytest.approx(expected, abs=1e-6)
    assert max(scores) - min(scores) > 1e-3, "the model tells passages apart"


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 5, 10, 35])
def test_a_pairs_score_does_not_depend_on_how_many_are_scored_at_once(reranker, texts, at_once):
    every_pair = [(f"Which river is {text.split()[1]} on?", other) for text in texts for other in texts[:5]]
    pairs = list(dict.fromkeys(every_pair))
    groups = [pairs[i : i + at_once] for i in range(0, len(pairs), at_once)]
    few = [list(zip(group, reranker.score(group), strict=True)) for group in groups]
    every = dict(zip(pairs, reranker.score(pairs), strict=True))
    expected = [[(pair, every[pair]) for pair, _ in group] for group in few]
    assert_same_answers(few, expected, reranker.guarantee)


def test_a_search_is_put_in_the_models_order_whoever_else_asks(reranker, bm25):
    source = RerankedSource(bm25, reranker, depth=5)
    answers = source.find(source.prepare(QUESTIONS), [5, 2, 9])
    for question, answer, topk in zip(QUESTIONS, answers, [5, 2, 9], strict=True):
        behind = bm25.search([question], 5)[0]
        scores = reranker.score([(question, hit.passage.contents) for hit in behind])
        best = sorted(range(len(behind)), key=lambda i: -scores[i])[:topk]
        expected = [(behind[i].passage, scores[i]) for i in best]
        again = source.find(source.prepare([question]), [topk])
        for each in (answer, *again):
            assert_same_answers([plain(each)], [expected], source.description.guarantee)
    assert source.description.backend == "bm25+rerank"


def test_what_gives_no_single_score_or_does_not_load_is_refused(make_cross_encoder, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="--rerank.*3 labels"):
        Reranker(str(make_cross_encoder(3)), "cpu").load()
    with pytest.raises(UserError, match="no such folder"):
        Reranker(str(tmp_path / "nothing"), "cpu").load()
    monkeypatch.setattr("sentence_transformers.CrossEncoder", Mock(side_effect=TypeError("odd")))
    with pytest.raises(UserError, match="does not load as a cross-encoder .*odd"):
        Reranker(str(make_cross_encoder(1)), "cpu").load()


@pytest.fixture(scope="module")
def client(serve, bm25, reranker):
    with serve(lambda: RerankedSource(bm25, reranker, 5), reranker=reranker) as ready:
        yield ready


def test_retrieve_answers_in_the_models_order(client, bm25, reranker):
    body = {"queries": QUESTIONS[:1], "topk": 5, "return_scores": True}
    (hits,) = client.post("/retrieve", json=body).json()["result"]
    scores = [hit["score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert {hit["document"]["id"] for hit in hits} == {
        hit.passage.id for hit in bm25.search(QUESTIONS[:1], 5)[0]
    }
    assert client.get("/ready").json()["backend"] == "bm25+rerank"


def test_search_r1s_client_sends_what_retrieve_gave_and_gets_it_ordered(client, reranker):
    """Its payload: documents with scores or bare, `rerank_topk`, `return_scores`."""
    request = {"queries": QUESTIONS, "topk": 5, "return_scores": True}
    documents = client.post("/retrieve", json=request).json()["result"]
    body = {"queries": QUESTIONS, "documents": documents, "rerank_topk": 2, "return_scores": True}
    result = client.post("/rerank", json=body).json()["result"]
    guarantee, searched = client.get("/ready").json()["guarantee"], [wired(hits[:2]) for hits in documents]
    # The search had the model's order already.
    assert_same_answers([wired(hits) for hits in result], searched, guarantee)
    turned = [[hit["document"] for hit in reversed(hits)] for hits in documents]
    bare = client.post("/rerank", json={"queries": QUESTIONS, "documents": turned, "rerank_topk": 2})
    assert bare.json()["result"] == [[hit["document"] for hit in hits[:2]] for hits in documents]


@pytest.mark.parametrize("name", ["topk", "top_n", "rerank_topk"])
def test_one_query_gets_positions_and_scores(client, reranker, texts, name):
    body = {"query": QUESTIONS[0], "documents": texts, name: 3}
    results = client.post("/rerank", json=body).json()["results"]
    scores = reranker.score([(QUESTIONS[0], text) for text in texts])
    best = sorted(range(len(texts)), key=lambda i: -scores[i])[:3]
    assert results == [{"index": i, "relevance_score": scores[i]} for i in best]


def test_documents_may_be_texts_or_have_them_under_either_name(client, reranker):
    documents = ["Ulm", {"text": "Ulm"}, {"id": "x", "contents": "Ulm", "url": "u"}]
    results = client.post("/rerank", json={"query": "Ulm", "documents": documents}).json()["results"]
    scores = {hit["relevance_score"] for hit in results}
    assert max(scores) - min(scores) <= (0 if reranker.guarantee is Determinism.BITS else TIE)
    if len(scores) == 1:
        assert [hit["index"] for hit in results] == [0, 1, 2], "equal scores stay in the order sent"
    body = {"queries": ["Ulm"], "documents": [documents[2:]]}
    (sent,) = client.post("/rerank", json=body).json()["result"][0]
    assert sent == documents[2]


def test_nothing_to_order_gives_nothing(client):
    assert client.post("/rerank", json={"query": "Ulm", "documents": []}).json() == {"results": []}
    assert client.post("/rerank", json={"queries": [], "documents": []}).json() == {"result": []}
    assert client.post("/rerank", json={"queries": ["Ulm"], "documents": [[]]}).json() == {"result": [[]]}


@pytest.mark.parametrize(
    "body, status, reason",
    [
        ({"documents": []}, 422, "query"),
        ({"query": "a", "queries": ["a"], "documents": []}, 422, "query"),
        ({"query": "a", "documents": [["b"]]}, 422, "list of documents for query"),
        ({"queries": ["a"], "documents": ["b"]}, 422, "list of lists"),
        ({"queries": ["a"], "documents": [["b"], ["c"]]}, 422, "for each query"),
        ({"query": "a", "documents": [{"id": "x"}]}, 422, "documents"),
        ({"query": "a", "documents": ["b"], "topk": 0}, 422, "topk"),
        ({"query": "a", "documents": ["b"] * 2049}, 413, "2049 documents"),
        ({"query": "a" * 9000, "documents": ["b"]}, 413, "query has 9000 characters; at most"),
        ({"queries": ["a", "b" * 9000], "documents": [[], []]}, 413, "queries[1] has 9000 characters"),
    ],
)
def test_a_body_that_does_not_fit_is_refused_with_the_reason(client, body, status, reason):
    answer = client.post("/rerank", json=body)
    assert answer.status_code == status and reason in answer.json()["reason"]


def test_an_index_is_not_opened_for_a_model_that_does_not_load():
    sources = Mock()
    sources.reranker.load.side_effect = UserError("no such model")
    opens = IndexOpener(ServeCommand(index=(("default", Path("i")),)), sources, Mock())
    with pytest.raises(UserError, match="no such model"):
        opens(IndexLocation(Path("i")))
    sources.ray.open.assert_not_called()


@pytest.mark.parametrize("value", [b'"\\ud800"', b"NaN"])
def test_a_key_that_could_not_be_sent_back_is_refused(client, value):
    content = b'{"queries": ["Ulm"], "documents": [[{"contents": "b", "title": %s}]]}' % value
    answer = client.post("/rerank", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 422 and answer.json()["error"] == "bad_input"


def test_a_server_without_a_model_has_no_such_path(serve, bm25):
    with serve(lambda: bm25) as client:
        assert client.post("/rerank", json={"query": "a", "documents": ["b"]}).status_code == 404


def test_the_api_page_shows_a_payload_that_works(client):
    operation = client.get("/openapi.json").json()["components"]["schemas"]["RerankRequest"]
    (example,) = operation["examples"]
    assert len(client.post("/rerank", json=example).json()["results"]) == 1
