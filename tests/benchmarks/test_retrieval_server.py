"""The benchmark against real servers."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from types import SimpleNamespace

import httpx
import pytest

from benchmarks import retrieval_server as benchmark

from .conftest import run_script, server_process

BENCHMARK = "benchmarks/retrieval_server.py"


@pytest.mark.full
def test_two_servers_are_compared_and_give_the_same_ids(minilm_index, tmp_path):
    ours = ("retrieval_server/start_retrieval.py", "--index", minilm_index, "--cache-size", 0)
    theirs = (*ours, "--max-batch", 1)
    common = ["--questions", minilm_index.parent / "questions.jsonl", "--seconds", 5, "--rounds", 1]
    with server_process(*ours) as first, server_process(*theirs) as other:
        a, b = first.url, other.url
        output = run_script(
            BENCHMARK, "--url", a, "--url", b, "--clients", 4, "--json", tmp_path / "r.json", *common
        )
        assert "10 of 10 questions" in output
        assert f"{a} / {b}: " in output and "errors none; 0 of " in output
        rounds = json.loads((tmp_path / "r.json").read_text())
        assert all(rounds[url][0]["latencies"] for url in (a, b))
        assert "open loop, 20 per second" in run_script(BENCHMARK, "--url", a, "--rate", 20, *common)
    with pytest.raises(AssertionError, match="does not answer"):
        run_script(BENCHMARK, "--url", a, *common)


@pytest.mark.full
def test_the_ceiling_needs_no_server(minilm_index):
    questions = ["--questions", minilm_index.parent / "questions.jsonl", "--rounds", 1]
    output = run_script(BENCHMARK, "--ceiling", minilm_index, *questions)
    assert "encoder + search, alone, batches of 64" in output and "answers differ" not in output


@pytest.mark.nightly
def test_the_original_and_ours_are_started_compared_and_stopped(minilm_index, tmp_path):
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
    arguments = ["--anchor", "search-r1", stand_in, "--index", minilm_index, "--device", "cpu"]
    common = ["--questions", minilm_index.parent / "questions.jsonl"]
    common += ["--seconds", 0.5, "--rounds", 1, "--clients", 2]
    more = ["--ours", "GOMP_SPINCOUNT=1 --search-threads-alone 1", "--restarts", 2]
    output = run_script(BENCHMARK, *arguments, *common, *more)
    assert output.count(" 0 of 10 questions") == output.count(" 10 of 10 questions") == 1
    assert output.count("errors none") == 3 and "in each of 2 starts" in output
    assert output.count("started ") == 6
    for name in ("ours", "Search-R1's", "ours GOMP_SPINCOUNT=1 --search-threads-alone 1"):
        assert len([line for line in output.splitlines() if line.startswith(f"{name}  ")]) == 1
    for line in output.splitlines():
        if line.startswith("started "):
            with pytest.raises(httpx.TransportError):
                httpx.get(line.split()[-1])


class Measured:
    """Two stages of five questions in batches of two."""

    def seconds(self):
        return [0.2, 0.4, 0.1]


def test_the_ceiling_counts_every_question_with_the_time_of_its_batch():
    round_ = benchmark.Ceiling("stages", Measured(), batch=2, questions=5).round()
    assert round_.latencies == [0.2, 0.2, 0.4, 0.4, 0.1] and round_.seconds == pytest.approx(0.7)
    assert round_.qps == pytest.approx(5 / 0.7) and round_.other_ids is None


@pytest.mark.parametrize(
    "arguments, reason",
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
def test_an_anchor_that_cannot_be_started_is_refused(arguments, reason, capsys):
    with pytest.raises(SystemExit):
        benchmark.parse_args(arguments)
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
    round_ = asyncio.run(work)
    assert round_.seconds == 1.1 and round_.latencies == pytest.approx([0.4, 0.4, 0.4])


def test_a_server_without_an_answer_in_a_round_has_no_ratio(capsys):
    args = SimpleNamespace(rate=None, clients=1, rounds=1, seconds=1.0, restarts=1)
    rounds = {"ours": [benchmark.Round(1.0, [0.1] * 10)], "slow": [benchmark.Round(1.0)]}
    benchmark.report(args, rounds)
    assert "ours / slow: nan x the queries per second" in capsys.readouterr().out


def test_percentiles_and_ratios_are_those_of_the_answers():
    round_ = benchmark.Round(seconds=2.0, latencies=[0.1, 0.4, 0.2, 0.3], errors=Counter({"503": 2}))
    assert round_.qps == 2.0
    assert [round_.percentile(share) for share in (0.0, 0.5, 0.95)] == [100.0, 300.0, 400.0]
    row = benchmark.line("server", [round_, benchmark.Round(seconds=1.0, latencies=[0.1] * 4)])
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
