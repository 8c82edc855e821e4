"""start_retrieval.py --web: flags, and a server as a process of its own."""

from __future__ import annotations

import httpx
import pytest

from retrieval_server.start_retrieval import main

from .conftest import KEY


def test_what_is_wrong_is_said_in_one_line_before_a_port_is_open(monkeypatch, capsys, tmp_path):
    for name in ("SERPER_API_KEY", "SEARXNG_URL"):
        monkeypatch.delenv(name, raising=False)
    for flags, reason in (
        (["--web", "serper"], "SERPER_API_KEY is not set"),
        (["--web", "searxng"], "SEARXNG_URL"),
        (["--web", "serper", "--replay", str(tmp_path / "none")], "--record FILE"),
    ):
        assert main(flags) == 2
        message = capsys.readouterr().err
        assert message.startswith("error: ") and reason in message and message.count("\n") == 1


@pytest.mark.slow
def test_recorded_in_one_process_and_replayed_in_another_beside_an_index(
    stub, bm25_index, start_server, tmp_path, capfd
):
    recording = tmp_path / "run.jsonl"
    body = {"queries": ["Ulm", "Trier"], "topk": 2, "return_scores": True}
    flags = ("--web", "serper", "--web-param", "gl=us")
    direct = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    recorded = (*flags, "--record", recording, "--web-url", stub.url)
    with start_server(*recorded, SERPER_API_KEY=KEY, **direct) as server:
        first = httpx.post(server.url + "/retrieve", json=body, timeout=60).content
        assert b"https://example.org/Ulm/1" in first and stub.requests[0].fields["gl"] == "us"
    replayed = (*flags, "--replay", recording, "--index", bm25_index, "--log-level", "debug")
    with start_server(*replayed, **direct) as server:
        again = httpx.post(server.url + "/retrieve", json=body | {"index": "web"}, timeout=60).content
        assert again == first
        local = httpx.post(server.url + "/retrieve", json={"query": "Ulm", "topk": 1}, timeout=60).json()
        assert local["result"][0][0]["id"] == "town-0"
        reload = httpx.post(server.url + "/reload", json={"index": "web"}, timeout=60)
        assert reload.status_code == 404 and reload.json()["error"] == "no_reload"
    assert len(stub.requests) == 2
    assert KEY not in "".join(capfd.readouterr())
