"""The overload benchmark: what it asks, what it judges, and a run against a real server."""

from __future__ import annotations

import asyncio
import gc
import itertools

import pytest

from benchmarks import retrieval_overload as overload
from retrieval_server.indexing.builder import build_index
from retrieval_server.indexing.options import BuildOptions

from .conftest import server_process


def of(p95, errors=()):
    result = overload.load.Round(seconds=1.0, latencies=[p95] * 20)
    result.errors.update(dict(errors))
    return result


FLAT = [100.0] * 50


@pytest.mark.parametrize(
    "storm, memory, alive, missed",
    [
        (of(1.9, {"503": 900}), FLAT, True, 0),
        (of(2.1, {"503": 900}), FLAT, True, 1),
        (of(1.0, {"503": 900, "504": 1}), FLAT, True, 1),
        (of(1.0, {"ClientOSError": 1}), FLAT, True, 1),
        (of(1.0), FLAT[:25] + [104.0] * 25, True, 1),
        (of(1.0), [150.0, *FLAT], True, 0),  # a peak that goes again
        (of(1.0), [], True, 1),
        (of(9.0, {"500": 5}), [], False, 4),
    ],
)
def test_a_bar_that_is_missed_is_counted(storm, memory, alive, missed):
    assert overload.report(of(1.0), storm, memory, alive) == missed


def test_a_line_separator_within_a_question_does_not_end_its_row(tmp_path):
    (tmp_path / "q.jsonl").write_text('{"question": "Who\u2028?"}\n\n{"question": "Where?"}\n')
    assert overload.load.read_questions(tmp_path / "q.jsonl") == ["Who\u2028?", "Where?"]
    (tmp_path / "q.jsonl").write_text("\n")
    with pytest.raises(SystemExit, match="has no question"):
        overload.load.read_questions(tmp_path / "q.jsonl")


async def test_the_memory_of_a_server_is_read_beside_its_route_for_queries():
    requested = []

    class Session:
        def get(self, url):
            requested.append(url)
            raise asyncio.CancelledError

    for url in ("http://a/", "http://a/retrieve"):
        with pytest.raises(asyncio.CancelledError):
            await overload.watch_memory(url, Session(), [])
    assert requested == ["http://a/metrics"] * 2


def test_no_two_questions_are_equal():
    questions = list(itertools.islice(overload.numbered(["a", "b", "a"]), 1000))
    assert len(set(questions)) == 1000


async def test_questions_that_are_answered_leave_nothing_to_collect():
    def tasks():
        return sum(type(each) is asyncio.Task for each in gc.get_objects())

    before, during = tasks(), []

    class Answered:
        async def timed(self, question, due, result):
            if question == "question (499)":
                during.append(tasks())

    await overload.load.open_loop(Answered(), overload.numbered(["question"]), 2000, 0.5)
    assert during[0] < before + 100


async def test_an_answer_that_is_none_is_counted_as_an_error():
    class Rubbish(overload.load.Target):
        async def ask(self, question):
            return {}["result"]

    storm = await overload.load.open_loop(Rubbish("", "", None, 3), overload.numbered(["question"]), 500, 0.1)
    assert not storm.latencies and set(storm.errors) == {"KeyError"}


@pytest.mark.slow
def test_a_real_server_is_overloaded_and_judged(tmp_path, capsys, monkeypatch):
    (tmp_path / "c.jsonl").write_text('{"id": "1", "contents": "Ulm is a town."}\n')
    (tmp_path / "q.txt").write_text("Where is Ulm?\n")
    out = tmp_path / "index"
    build_index(BuildOptions(corpus=tmp_path / "c.jsonl", out=out, backend="bm25", progress=False))
    monkeypatch.setattr(overload.load, "WARM_UP_S", 0.2)
    with server_process("retrieval_server/start_retrieval.py", "--index", out) as server:
        flags = ["--clients", "2", "--capacity-seconds", "1", "--factor", "2", "--seconds", "3"]
        overload.main(["--url", server.url, "--questions", str(tmp_path / "q.txt"), *flags])
    printed = capsys.readouterr().out
    assert "capacity, 2 clients" in printed and "the server is alive and answers: yes" in printed
    assert "MB at the end" in printed and server.process.returncode == 0
