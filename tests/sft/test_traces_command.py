"""`rag-r1 traces` as its own process, against a teacher that fails in every way, and killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from rag_r1.agent.records import read_records, trajectory_of
from rag_r1.data.rows import write_rows
from rag_r1.demo.world import to_row
from rag_r1.protocols import load_protocol
from rag_r1.rollouts.provenance import Provenance
from rag_r1.sft import traces_command
from tests.evaluation.killed_runs import kill_at, lines, signal_at
from tests.evaluation.scripted_runs import untimed
from tests.fakes.scripted_teacher import Teacher

ROOT = Path(__file__).parents[2]
MQ = load_protocol("rag_r1_mq")
IN_FLIGHT = 16
KEY = "sk-secret-of-the-teacher"


def questions_file(teacher: Teacher, folder: Path) -> Path:
    path = folder / "questions.parquet"
    write_rows(path, (to_row(question, i, "train", MQ) for i, question in enumerate(teacher.questions)))
    return path


def arguments(teacher: Teacher, questions: Path, out: Path, *more: str) -> list[str]:
    flags = {
        "--questions": questions,
        "--teacher-url": f"{teacher.url}/v1",
        "--teacher-model": "rules",
        "--retriever-url": teacher.url,
        "--protocol": "rag_r1_mq",
        "--out": out,
        "--in-flight": IN_FLIGHT,
        "--timeout-s": 20,  # many times what the slowest machine needs
        "--retries": 5,
        "--backoff-s": 0.01,
        "--price-in": 1,
        "--price-out": 2,
    }
    return [str(word) for pair in flags.items() for word in pair] + list(more)


def started(args: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "rag_r1.cli", "traces", *args],
        cwd=ROOT,
        env={**os.environ, "OPENAI_API_KEY": KEY, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def settle(teacher: Teacher) -> None:
    """Wait until the server has dealt with all that a killed client has sent."""
    quiet = 0
    while quiet < 10:
        count = len(teacher.log)
        time.sleep(0.02)
        quiet = quiet + 1 if len(teacher.log) == count and not teacher.busy else 0


@pytest.mark.slow
def test_a_run_with_faults_that_is_killed_twice_loses_nothing_and_asks_nothing_twice(tmp_path: Path):
    with Teacher.of_world(seed=3, count=300, latency_s=0.04) as teacher:
        args = arguments(teacher, questions_file(teacher, tmp_path), tmp_path / "out", "--tries", "9")
        tape, journal = (tmp_path / "out" / "journal" / f"{n}.ndjson" for n in ("exchanges", "records"))
        at_kill: list[tuple[set[str], list[dict]]] = []
        for answers in (150, 400):
            kill_at(started(args), tape, answers)
            settle(teacher)
            taped = {line["sha256"] for line in lines(tape) if "answer" in line}
            at_kill.append((taped, lines(journal)))
            teacher.mark("kill")
        last = started(args)
        output, _ = last.communicate(timeout=300)
        assert last.returncode == 0, output
        _nothing_is_lost(teacher, tmp_path / "out", at_kill)
        _nothing_is_asked_twice(teacher, at_kill)
        _what_is_told_is_true(teacher, tmp_path / "out", output)
        # A further start has nothing to do but the questions that failed.
        teacher.mark("done")
        again = started(args)
        output, _ = again.communicate(timeout=300)
        assert again.returncode == 0, output
        since = teacher.log[[entry["event"] for entry in teacher.log].index("done") + 1 :]
        # What hung in an earlier start may be answered late.
        requested = {entry["question"] for entry in since if entry["event"] == "received"}
        dead = {question.id for question in teacher.questions if teacher.is_dead(question)}
        assert dead and requested == dead
    assert teacher.keys == {f"Bearer {KEY}"} and KEY not in output
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file() and KEY in path.read_text()]


def _nothing_is_lost(teacher: Teacher, out: Path, at_kill: list) -> None:
    records = list(read_records(out))  # the folder has no other JSON lines
    assert [record["question_id"] for record in records] == [question.id for question in teacher.questions]
    by_id = {record["id"]: record for record in records}
    assert [len(journal) for _, journal in at_kill] != [0, 0]
    for _, journal in at_kill:
        for record in journal:
            assert record["right"] is None or by_id[record["id"]] == record


def _nothing_is_asked_twice(teacher: Teacher, at_kill: list) -> None:
    events = [entry["event"] for entry in teacher.log]
    kills = [i for i, event in enumerate(events) if event == "kill"]
    for kill, (taped, _) in zip(kills, at_kill, strict=True):
        assert taped and not [e for e in teacher.log[kill:] if e.get("request") in taped]
    # What was answered and asked again all the same had not reached the tape: it was in flight at a kill.
    answered = [(i, e["request"]) for i, e in enumerate(teacher.log) if _is_answered(e)]
    times = Counter(request for _, request in answered)
    for begin, kill, (taped, _) in zip([0, *kills], kills, at_kill, strict=False):
        lost = {request for i, request in answered if begin <= i < kill} - taped
        assert len(lost) <= IN_FLIGHT
        times.subtract(lost)
    assert max(times.values()) == 1


def _is_answered(entry: dict) -> bool:
    return entry["event"] == "answered" and entry["fault"] is None


def _what_is_told_is_true(teacher: Teacher, out: Path, output: str) -> None:
    summary = json.loads((out / "summary.json").read_text())
    truth = sum(map(teacher.is_right, teacher.questions)) / len(teacher.questions)
    assert abs(summary["accuracy"] - truth) <= 0.03
    assert f"accuracy {summary['accuracy']:.3f}" in output
    assert "rag-r1 sft-data --traces" in output
    dead = sum(map(teacher.is_dead, teacher.questions))
    assert summary["failed"] == summary["statuses"]["engine_failure"] == dead > 0
    assert summary["statuses"]["answered"] == summary["judged"] == len(teacher.questions) - dead
    alive = [question for question in teacher.questions if not teacher.is_dead(question)]
    assert summary["accuracy"] == sum(map(teacher.is_right, alive)) / len(alive)
    by_id = {question.id: question for question in teacher.questions}
    for record in read_records(out):
        question = by_id[record["question_id"]]
        assert record["right"] is (None if teacher.is_dead(question) else teacher.is_right(question))
        if record["right"]:
            assert trajectory_of(record).answer == question.gold
    usage = summary["usage"]
    taped = lines(out / "journal" / "exchanges.ndjson")
    assert usage["requests"] == len(taped) and usage["completion_tokens"] == 10 * len(taped)
    assert summary["cost"] == pytest.approx(len(taped) * (100 + 2 * 10) / 1e6)


def run_here(teacher: Teacher, tmp_path: Path, out: str, *more: str) -> int:
    return traces_command.main(arguments(teacher, questions_file(teacher, tmp_path), tmp_path / out, *more))


@pytest.mark.slow
def test_a_killed_run_ends_as_one_that_was_not(tmp_path: Path):
    with Teacher.of_world(seed=4, count=60) as teacher:
        assert run_here(teacher, tmp_path, "whole") == 0
        args = arguments(teacher, questions_file(teacher, tmp_path), tmp_path / "killed")
        kill_at(started(args), tmp_path / "killed" / "journal" / "exchanges.ndjson", 50)
        assert run_here(teacher, tmp_path, "killed", "--in-flight", "3") == 0
    whole, killed = (list(map(untimed, read_records(tmp_path / out))) for out in ("whole", "killed"))
    judged = [record["right"] is not None for record in whole]
    assert [r for r, known in zip(whole, judged, strict=True) if known] == [
        r for r, known in zip(killed, judged, strict=True) if known
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_run_waits_for_what_is_under_way_and_asks_nothing_twice(tmp_path: Path):
    with Teacher.of_world(seed=7, count=60, calm=True, latency_s=0.1) as teacher:
        args = arguments(teacher, questions_file(teacher, tmp_path), tmp_path / "out")
        process = started(args)
        signal_at(process, tmp_path / "out" / "journal" / "exchanges.ndjson", 40, signal.SIGINT)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 130 and "run the same command again" in output, output
        settle(teacher)
        answered = sum(map(_is_answered, teacher.log))
        assert 40 <= answered == len(lines(tmp_path / "out" / "journal" / "exchanges.ndjson"))
        assert run_here(teacher, tmp_path, "out") == 0
        assert set(Counter(e["request"] for e in teacher.log if e["event"] == "received").values()) == {1}
    assert len(list(read_records(tmp_path / "out"))) == 60


@pytest.mark.slow
def test_a_cost_limit_ends_a_run_that_then_goes_on(tmp_path: Path, capsys):
    with Teacher.of_world(seed=5, count=30, calm=True, latency_s=0.0) as teacher:
        # A request costs 120 millionths; it may cost up to 2 * 1024 for what is generated, and its prompt.
        assert run_here(teacher, tmp_path, "out", "--max-cost", "0.006") == 3
        assert "stopped: the next request could cost up to" in capsys.readouterr().out
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert 0 < summary["cost"] <= 0.006 and summary["played"] < 30
        count = len(teacher.log)
        assert run_here(teacher, tmp_path, "out", "--max-cost", "1") == 0
        requests = Counter(e["request"] for e in teacher.log if e["event"] == "answered")
        assert set(requests.values()) == {1} and len(teacher.log) > count
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["played"] == 30


@pytest.mark.slow
def test_other_settings_and_wrong_arguments_are_refused_by_name(tmp_path: Path, capsys):
    with Teacher.of_world(seed=6, count=4, calm=True, latency_s=0.0) as teacher:
        assert run_here(teacher, tmp_path, "out", "--samples", "2", "rag_r1.agent.max_turns=5") == 0
        assert len(list(read_records(tmp_path / "out"))) == 8
        assert "right at least once" in capsys.readouterr().out
        card = Provenance.read(tmp_path / "out")
        assert (card.model.name, card.budget["max_turns"], card.sampling["samples"]) == ("rules", 5, 2)
        log = len(teacher.log)
        for more, message in (
            (["--samples", "3", "rag_r1.agent.max_turns=5"], "samples was 2 and is now 3"),
            (["--samples", "2"], "budget.max_turns was 5 and is now 4"),
            (["--samples", "2", "rag_r1.agent.max_turn=5"], "unknown key rag_r1.agent.max_turn"),
            (["agent.max_turns=5"], "only keys of rag_r1"),
            (["~rag_r1.agent.max_turns"], "a key cannot be removed here"),
            (["--term", "no_such"], "no_such"),
            (["--protocol", "absent.yaml"], "absent.yaml"),
            (["--retriever-url", "http://127.0.0.1:9", "rag_r1.retriever.retries=0"], "rag-r1 index serve"),
        ):
            assert run_here(teacher, tmp_path, "out", *more) == 1
            assert message in capsys.readouterr().err
        assert len(teacher.log) == log
    for wrong, message in (
        (["--max-cost", "1", "--price-in", "0", "--price-out", "0"], "--max-cost needs"),
        (["--engine", "completions"], "give --tokenizer"),
        (["--body", "{"], "--body is not JSON"),
        (["--body", "[1]"], "--body must be a JSON object"),
        (["--body", '{"n": 2, "model": "m"}'], "--body: the command itself sets model, n: leave that out"),
        (["--rpm", "0"], "--rpm"),
        (["--teacher-url", "localhost:1"], "argument --base-url: must be an http(s) address"),
    ):
        with pytest.raises(SystemExit) as end:
            run_here(teacher, tmp_path, "out", *wrong)
        assert end.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.slow
def test_a_wrong_address_ends_the_run_before_a_question_is_lost(tmp_path: Path, capsys):
    with Teacher.of_world(seed=6, count=4, calm=True, latency_s=0.0) as teacher:
        assert run_here(teacher, tmp_path, "out", "--teacher-url", f"{teacher.url}/elsewhere") == 1
        assert "answers with HTTP 404" in capsys.readouterr().err and not (tmp_path / "out").exists()
        assert run_here(teacher, tmp_path, "out") == 0
    assert {record["try"] for record in read_records(tmp_path / "out")} == {1}
