"""What an operator sees: the token, the log, the metrics and their dashboard, the page about the API."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from retrieval_server.search.index_source import IndexSource
from retrieval_server.server import wire
from retrieval_server.server.limits import RequestLimits
from retrieval_server.server.log_format import JsonLinesFormatter, TextFormatter
from retrieval_server.server.reload import IndexLocation, Reloader
from retrieval_server.start_retrieval import main

ROOT = Path(__file__).parents[3]
SECRET = "correct-horse-battery-staple"
ASK = {"queries": ["Ulm"]}
NEARLY = (f"Bearer {SECRET}x", f"Bearer {SECRET[:-1]}")


@pytest.fixture(scope="module")
def guarded(bm25, serve):
    with serve(lambda: bm25, token=SECRET) as client:
        yield client


@pytest.mark.parametrize(
    "sent", ["", "Bearer", "Bearer wrong", f"Basic {SECRET}", SECRET, "Bearer \xff", *NEARLY, None]
)
def test_without_the_token_nothing_is_answered_nor_read(guarded, sent):
    headers = {} if sent is None else {"authorization": sent.encode("latin-1")}
    requests = ("POST", "/retrieve"), ("POST", "/reload"), ("GET", "/metrics"), ("GET", "/no/such")
    for method, path in requests:
        answer = guarded.request(method, path, content=b"not JSON", headers=headers)
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"] == "unauthorized" and SECRET not in answer.text


def test_with_the_token_all_works_and_probes_need_none(guarded):
    with_token = {"authorization": f"Bearer {SECRET}"}
    assert guarded.post("/retrieve", json=ASK, headers=with_token).status_code == 200
    page = guarded.get("/metrics", headers={"authorization": f"bearer  {SECRET}"})  # the scheme in any case
    assert page.status_code == 200 and "retrieval_queries_total" in page.text
    for path in ("/", "/health", "/ready", "/docs", "/openapi.json"):
        assert guarded.get(path).status_code == 200
    schemes = guarded.get("/openapi.json").json()["components"]["securitySchemes"]
    assert [scheme["scheme"] for scheme in schemes.values()] == ["bearer"]


def lines(caplog):
    return [record for record in caplog.records if record.name == "retrieval_server.requests"]


def test_each_request_is_one_line_without_its_words_and_without_the_token(guarded, caplog):
    with caplog.at_level(logging.DEBUG):
        body = {"queries": ["Ulm in secret", "Celle"]}
        headers = {"authorization": f"Bearer {SECRET}", "x-request-id": "rollout-7.a"}
        answer = guarded.post("/retrieve", json=body, headers=headers)
        guarded.post("/retrieve", json=body, headers={"authorization": "Bearer guess"})
    first, second = lines(caplog)
    assert answer.headers["x-request-id"] == first.fields["id"] == "rollout-7.a"
    for formatter in (JsonLinesFormatter(), TextFormatter()):
        written = "\n".join(formatter.format(record) for record in caplog.records)
        assert not any(word in written for word in ("secret", "Celle", SECRET, "guess"))
    line = json.loads(JsonLinesFormatter().format(first))
    expected = {"id": "rollout-7.a", "route": "/retrieve", "status": 200, "queries": 2, "index": "default"}
    assert line.items() >= (expected | {"level": "info"}).items()
    assert line["ms"] >= 0 and "status=401" in TextFormatter().format(second)


@pytest.mark.parametrize("sent", ["a b", "x" * 65, "line\tfeed", '"}{', ""])
def test_an_id_that_could_spoil_the_log_is_replaced(client, sent):
    answer = client.get("/health", headers={"x-request-id": sent})
    assert re.fullmatch("[0-9a-f]{16}", answer.headers["x-request-id"])


def test_the_queries_words_are_logged_only_where_that_is_asked_for(bm25, serve, caplog):
    with serve(lambda: bm25, log_queries=True) as client, caplog.at_level(logging.INFO):
        client.post("/retrieve", json={"queries": ["Ulm\nand more"]})
    line = JsonLinesFormatter().format(lines(caplog)[-1])
    assert json.loads(line)["texts"] == ["Ulm\nand more"] and "\n" not in line
    assert "\n" not in TextFormatter().format(lines(caplog)[-1])


def test_an_error_in_the_log_is_one_line_too():
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed %s", ("a\nb",), sys.exc_info())
    line = JsonLinesFormatter().format(record)
    assert "\n" not in line and "two\nlines" in json.loads(line)["exception"]


def test_every_metric_of_the_dashboard_is_on_the_page(bm25_index, serve):
    dashboard = json.loads((ROOT / "retrieval_server" / "grafana.json").read_text())
    graphed = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\b(?:retrieval|process)_\w+", target["expr"])
    }
    places = {"towns": IndexLocation(bm25_index)}
    reloader = Reloader(places, lambda place: IndexSource.open(place.path))
    load, limits = {"towns": reloader.loader(places["towns"])}, RequestLimits(max_topk=5)
    with serve(load, reloader=reloader, limits=limits) as client:
        for body in (ASK, ASK, ASK | {"topk": 6}, ASK | {"index": "elsewhere"}):
            client.post("/retrieve", json=body)
        client.post("/reload", json={})
        families = list(text_string_to_metric_families(client.get("/metrics").text))
    samples = [sample for family in families for sample in family.samples]
    assert len(graphed) > 12 and graphed <= {sample.name for sample in samples}
    refused = {
        (sample.labels["index"], sample.labels["reason"])
        for sample in samples
        if sample.name == "retrieval_rejections_total" and sample.labels["reason"] != "not_ready"
    }
    assert refused == {("towns", "too_large"), ("", "unknown_index")}
    # Nothing that is measured is missing from the dashboard, but for what a histogram has beside its buckets.
    names = {family.name for family in families if not family.name.endswith("_created")}
    measured = {name for name in names if name.startswith("retrieval_")}
    graphs = {re.sub("_(total|bucket|sum|count)$", "", name) for name in graphed if "process" not in name}
    assert measured == graphs


def test_the_page_about_the_api_has_an_example_of_every_body_and_they_are_right(client):
    page = client.get("/openapi.json").json()
    schemas = page["components"]["schemas"]
    for path, methods in page["paths"].items():
        for operation in methods.values():
            bodies = [operation["responses"]["200"]["content"]]
            if "requestBody" in operation:
                bodies.append(operation["requestBody"]["content"])
            for content in bodies:
                for kind, body in content.items():
                    if kind == "text/plain":
                        assert "retrieval_" in body["example"]
                        continue
                    name = body["schema"]["$ref"].rpartition("/")[2]
                    (example,) = schemas[name]["examples"]
                    getattr(wire, name).model_validate(example)
            assert operation["summary"], path


@pytest.mark.parametrize(
    "host, token, warned",
    [("0.0.0.0", None, True), ("0.0.0.0", " ", True), ("0.0.0.0", SECRET, False), ("127.0.0.1", None, False)],
)
def test_listening_to_the_network_without_a_token_is_warned_of(
    tmp_path, host, token, warned, monkeypatch, capsys
):
    monkeypatch.delenv("RETRIEVAL_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("RETRIEVAL_TOKEN", token)
    assert main(["--host", host, "--index", str(tmp_path)]) == 2  # there is no index
    written = capsys.readouterr()
    assert ("WARNING" in written.err) == warned and SECRET not in written.err + written.out
