"""start_retrieval.py --web: flags, and a server as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from retrieval_server.serve_options import parse_args
from retrieval_server.start_retrieval import main

ROOT = Path(__file__).resolve().parents[3]
KEY = "tvly-SECRET-0123456789"


@pytest.mark.parametrize(
    "flags, reason",
    [
        ([], "--index DIR"),
        (["--web", "altavista"], "--web"),
        (["--index", "i", "--record", "f"], "--record belongs to --web"),
        (["--index", "i", "--replay", "f"], "--replay belongs to --web"),
        (["--index", "web=i", "--web", "serper"], "choose another"),
        (["--web", "serper", "--web-param", "gl"], "NAME=VALUE"),
        (["--web", "serper", "--web-concurrency", "0"], "--web-concurrency"),
        (["--web", "serper", "--web-timeout", "nan"], "--web-timeout"),
        (["--web", "serper", "--web-retries", "-1"], "--web-retries"),
    ],
)
def test_flags_that_do_not_fit_are_refused_with_a_sentence(flags, reason, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_args("", flags)
    assert ended.value.code == 2 and reason in capsys.readouterr().err


def test_what_is_wrong_is_said_in_one_line_before_a_port_is_open(monkeypatch, capsys, tmp_path):
    for name in ("SERPER_API_KEY", "SEARXNG_URL"):
        monkeypatch.delenv(name, raising=False)
    for flags, reason in (
        (["--web", "serper"], "SERPER_API_KEY is not set"),
        (["--web", "searxng"], "SEARXNG_URL"),
        (["--web", "serper", "--replay", str(tmp_path / "none")], "--record FILE"),
    ):
        assert main(flags) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ") and reason in said and said.count("\n") == 1


@pytest.mark.slow
def test_recorded_in_one_process_and_replayed_in_another_beside_an_index(stub, bm25_index, tmp_path):
    def serve(*flags, **environment):
        port_file = tmp_path / "out"
        with port_file.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "retrieval_server/start_retrieval.py", "--port", "0", "--web", "serper"]
                + [str(flag) for flag in flags],
                cwd=ROOT,
                env=os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"} | environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        for _ in range(6000):
            assert process.poll() is None, port_file.read_text()
            if "serving on " in (said := port_file.read_text()):
                return process, said.split("serving on ")[1].split()[0]
            time.sleep(0.01)
        raise AssertionError("not ready within a minute")

    def stop(process):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert KEY not in (tmp_path / "out").read_text()

    recording = tmp_path / "run.jsonl"
    body = {"queries": ["Ulm", "Trier"], "topk": 2, "return_scores": True}
    flags = ("--record", recording, "--web-param", "gl=us", "--web-url", stub.url)
    process, url = serve(*flags, SERPER_API_KEY=KEY)
    try:
        first = httpx.post(url + "/retrieve", json=body, timeout=60).content
        assert b"https://example.org/Ulm/1" in first and stub.asked[0].fields["gl"] == "us"
    finally:
        stop(process)
    flags = ("--replay", recording, "--web-param", "gl=us", "--index", bm25_index, "--log-level", "debug")
    process, url = serve(*flags)
    try:
        again = httpx.post(url + "/retrieve", json=body | {"index": "web"}, timeout=60).content
        assert again == first
        local = httpx.post(url + "/retrieve", json={"query": "Ulm", "topk": 1}, timeout=60).json()
        assert local["result"][0][0]["id"] == "town-0"
        reload = httpx.post(url + "/reload", json={"index": "web"}, timeout=60)
        assert reload.status_code == 404 and reload.json()["error"] == "no_reload"
    finally:
        stop(process)
    assert len(stub.asked) == 2
