"""The wire as its clients see it."""

from __future__ import annotations

import json
import threading

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrieval_server.engine.options import EngineOptions
from retrieval_server.search.index_source import IndexSource
from retrieval_server.server.app import create_app
from retrieval_server.server.indexes import LoadProgress
from retrieval_server.server.limits import RequestLimits
from tests.fakes.waiting import wait_until

from ..builders import PASSAGES
from ..same_answers import assert_same_answers

QUERIES = ["Which river is Ulm on?", "barges on the Inn", "the town Celle"]


def test_bare_documents_unless_scores_are_asked_for(client):
    body = client.post("/retrieve", json={"queries": QUERIES[:1], "topk": 1}).json()
    assert body == {"result": [[PASSAGES[0]]]}
    unscored = {"queries": QUERIES[:1], "topk": 1, "return_scores": False}
    assert client.post("/retrieve", json=unscored).json() == body


def test_ready_says_what_is_being_loaded_and_each_step_is_a_line(bm25_index, capsys):
    progress, answered = LoadProgress(), threading.Event()

    def on_step(step):
        progress(step)
        answered.wait(30)

    app = create_app(lambda: IndexSource.open(bm25_index, on_step=on_step), progress=progress)
    with TestClient(app) as client:
        wait_until(lambda: progress.step)
        assert f"now {bm25_index.name}: the files" in client.get("/ready").json()["reason"]
        answered.set()
        wait_until(lambda: client.get("/ready").status_code == 200)
    steps = [f"{bm25_index.name}: {step}" for step in ("the files", "20 passages", "the bm25 index")]
    printed = capsys.readouterr().out.splitlines()
    for step, line in zip(steps, printed, strict=True):
        assert line.startswith(f"loading {step}")


def test_search_r1_and_rag_r1_payload_with_scores(client):
    body = client.post("/retrieve", json={"queries": QUERIES, "topk": 2, "return_scores": True}).json()
    assert list(body) == ["result"] and [len(hits) for hits in body["result"]] == [2, 2, 2]
    for hit in body["result"][0]:
        assert set(hit) == {"document", "score"} and set(hit["document"]) == {"id", "contents"}
        assert isinstance(hit["score"], float)
    assert [hits[0]["document"]["id"] for hits in body["result"]] == ["town-0", "river-5", "town-8"]


def test_topk_is_the_servers_where_absent_or_null(client):
    for more in ({}, {"topk": None}, {"other": 1}):
        answer = client.post("/retrieve", json={"queries": ["river"]} | more)
        assert len(answer.json()["result"][0]) == 3


BAD = {
    "no queries": (b"{}", "queries"),
    "a string": (b'{"queries": "Ulm"}', "queries"),
    "a number among them": (b'{"queries": ["Ulm", 5]}', "queries[1]"),
    "null": (b'{"queries": null}', "queries"),
    "topk 0": (b'{"queries": [], "topk": 0}', "topk"),
    "topk true": (b'{"queries": [], "topk": true}', "topk"),
    "topk as text": (b'{"queries": [], "topk": "3"}', "topk"),
    "topk 1.5": (b'{"queries": [], "topk": 1.5}', "topk"),
    "scores as text": (b'{"queries": [], "return_scores": "yes"}', "return_scores"),
    "half a surrogate pair": (b'{"queries": ["\\ud800"]}', "queries[0]"),
    "half a pair in a key": (b'{"queries": [], "topk\\ud800": 3}', "topk"),
    "a query beside queries": (b'{"queries": [], "query": "Ulm"}', "query"),
    "a list as the one query": (b'{"query": ["Ulm"]}', "query"),
    "two different topk": (b'{"queries": [], "topk": 3, "top_k": 4}', "top_k"),
    "a list": (b"[]", "body"),
    "cut JSON": (b'{"queries": [', "JSON"),
    "nothing": (b"", "body"),
    "not UTF-8": (b'{"queries": ["\xff"]}', "JSON"),
    "deep nesting": (b"[" * 100_000, "nested at most 64 deep"),
}


RETRIEVE_ONLY = ["scores as text", "half a pair in a key", "a query beside queries"]
RETRIEVE_ONLY += ["a list as the one query", "two different topk"]


@pytest.mark.parametrize(
    "path, case",
    [("/retrieve", case) for case in BAD] + [("/queries", case) for case in BAD if case not in RETRIEVE_ONLY],
)
def test_bad_input_is_422_and_names_the_key(client, path, case):
    content, key = BAD[case]
    if path == "/queries":
        content, key = content.replace(b"topk", b"k"), key.replace("topk", "k")
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["error"] == "bad_input" and key in answer.json()["reason"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["queries", "query", "topk", "top_k", "k", "return_scores", "urls"]) | st.text(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=json_values | st.binary(max_size=40),
    path=st.sampled_from(["/retrieve", "/queries", "/access", "/documents"]),
)
def test_no_body_makes_the_server_fail(client, body, path):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 404, 413, 422)
    if answer.status_code != 200:
        assert set(answer.json()) == {"error", "reason"}


def test_too_much_is_413_with_the_limit(bm25, serve):
    limits = RequestLimits(max_queries=2, max_query_chars=10, max_topk=5, max_body_bytes=1000)
    with serve(lambda: bm25, limits=limits) as client:
        for body, reason in [
            ({"queries": ["a", "b", "c"]}, "3 queries; at most 2"),
            ({"queries": ["a", "b" * 11]}, "queries[1] has 11 characters; at most 10"),
            ({"queries": ["a"], "topk": 6}, "topk is 6; at most 5"),
            ({"queries": ["a"], "padding": "x" * 1000}, "larger than 1000 bytes"),
        ]:
            answer = client.post("/retrieve", json=body)
            assert (answer.status_code, answer.json()["error"]) == (413, "too_large")
            assert reason in answer.json()["reason"]
        assert client.post("/retrieve", json={"queries": ["a", "b" * 10], "topk": 5}).status_code == 200


def test_wrong_paths_and_methods_answer_in_json(client):
    assert client.get("/nothing").json()["error"] == "not_found"
    assert client.get("/retrieve").json()["error"] == "method_not_allowed"


def test_ready_tells_what_is_served(client, bm25):
    assert client.get("/health").json()["status"] == "ok"
    ready = client.get("/ready").json()
    assert (ready["backend"], ready["passages"], ready["topk"]) == ("bm25", 20, 3)
    assert ready["corpus_sha256"] == bm25.manifest.corpus.sha256


def test_health_tells_the_limits_that_the_server_was_started_with(bm25, serve):
    limits, options = RequestLimits(max_queries=5, max_topk=7), EngineOptions(max_queue=9, deadline_s=2.5)
    with serve(lambda: bm25, limits=limits, options=options) as client:
        answer = client.get("/health").json()
        too_many = client.post("/retrieve", json={"queries": ["Ulm"] * 6})
    assert answer["limits"] == {"max_queue": 9, "deadline_s": 2.5, "max_queries": 5, "max_topk": 7}
    assert too_many.status_code == 413


def test_dense_answers_over_the_same_wire_with_exact_scores(dense_index, serve):
    retriever = IndexSource.open(dense_index, device="cpu")
    expected = [[(hit.passage.id, hit.score) for hit in hits] for hits in retriever.search(QUERIES, 3)]
    with serve(lambda: retriever) as client:
        body = client.post("/retrieve", json={"queries": QUERIES, "return_scores": True}).json()
        ready = client.get("/ready").json()
    assert (ready["separator"], ready["max_length"]) == (" [SEP] ", 64)
    assert ready["encoder_sha256"] == retriever.manifest.dense.encoder.sha256
    assert ready["query_mode"] is None, "the encoder was not trained for an agent"
    assert ready["query_prefix"] == "Represent this sentence for searching relevant passages: "
    got = [[(hit["document"]["id"], hit["score"]) for hit in hits] for hits in body["result"]]
    assert_same_answers(got, expected, ready["guarantee"])


def test_the_api_page_has_examples_and_only_the_routes_that_work(client):
    page = client.get("/openapi.json").json()
    searches = {"/retrieve", "/indexes/{name}/retrieve", "/queries", "/indexes/{name}/queries"}
    others = {"/access", "/documents", "/health", "/ready", "/reload", "/metrics"}
    assert set(page["paths"]) == searches | others
    for name in ("RetrieveRequest", "QueriesRequest"):
        (example,) = page["components"]["schemas"][name]["examples"]
        path = "/retrieve" if name == "RetrieveRequest" else "/queries"
        assert client.post(path, json=example).status_code == 200


def test_metrics_tell_what_happened(bm25, serve):
    with serve(lambda: bm25) as client:
        for _ in range(2):
            client.post("/retrieve", json={"queries": ["Ulm", "Celle", ""]})
        client.post("/retrieve", json={"queries": "Ulm"})
        client.get("/no/such/path")
        page = client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    for line in (
        'retrieval_queries_total{index="default"} 4.0',
        'retrieval_cache_hits_total{index="default"} 2.0',
        'retrieval_cache_entries{index="default"} 2.0',
        'retrieval_queue_length{index="default"} 0.0',
        'retrieval_batch_size_sum{index="default"} 2.0',
        'retrieval_stage_seconds_count{index="default",stage="queue"} 2.0',
        'retrieval_stage_seconds_count{index="default",stage="search"} 1.0',
        'retrieval_requests_total{route="/retrieve",status="200"} 2.0',
        'retrieval_requests_total{route="/retrieve",status="422"} 1.0',
        'retrieval_requests_total{route="other",status="404"} 1.0',
    ):
        assert line in page.text.splitlines()
    assert "/no/such" not in page.text
