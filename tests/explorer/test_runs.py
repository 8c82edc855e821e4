"""`rag-r1 runs`: what lies below a folder."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.explorer.runs import file_locks
from rag_r1.explorer.runs.command import age, main
from rag_r1.explorer.runs.facts import RunFacts, runs_below
from rag_r1.options.settings_file import recorded_settings
from rag_r1.runs.folder import RunFolder
from rag_r1.runs.lock import hold_lock
from rag_r1.training.guard.attempts import SUPERVISOR_LOCK
from tests.explorer.made_records import record, training, write

SETTINGS = {"command": "eval", "questions": 4, "samples": 1}


def begun(folder: Path, records: list[dict], **settings) -> RunFolder:
    """A run of `rag-r1 eval` with these records, which this process holds."""
    args = EvalArguments(
        model="m", questions=[Path("q.parquet")], base_url="http://127.0.0.1:1/v1", out=folder
    )
    with recorded_settings("rag-r1 eval", args):
        run = RunFolder(folder, {**SETTINGS, **settings})
    for one in records:
        run.write({"try": 1, **one})
    return run


def long_ago(folder: Path) -> None:
    """As if nothing had been written for a day."""
    then = time.time() - 86_500
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (then, then))


def only(folder: Path) -> RunFacts:
    (run,) = runs_below(folder)
    return run


RECORDS = [record("a", right=True), record("b", "x", right=False), record("c", right=None)]


def test_a_run_that_a_process_holds_is_running(tmp_path):
    with begun(tmp_path / "evals" / "one", RECORDS):
        long_ago(tmp_path)
        run = only(tmp_path)
    assert (run.name, run.kind, run.state, run.command) == ("evals/one", "eval", "running", None)
    assert (run.step, run.steps, run.em, run.n) == (3, 4, 0.5, 2)


def test_a_run_that_nobody_holds_has_stopped_and_says_how_to_go_on(tmp_path):
    folder = tmp_path / "it's one"
    begun(folder, RECORDS).close()
    long_ago(tmp_path)
    run = only(tmp_path)
    assert run.state == "stopped" and run.age_s > 86_000
    quoted = f"'@{folder}/settings.yaml'".replace("it's", "it'\"'\"'s")
    assert run.command == f"cd {Path.cwd()} && rag-r1 eval {quoted}"


def test_a_run_that_was_just_written_to_is_running(tmp_path):
    begun(tmp_path / "one", RECORDS).close()
    assert only(tmp_path).state == "running"


def test_a_supervised_training_runs_for_as_long_as_its_supervisor_does(tmp_path):
    write(tmp_path / "run" / "trajectories" / "train" / "step_000001-1.jsonl", [training("a", 1)])
    with hold_lock(tmp_path / "run", None, name=SUPERVISOR_LOCK):
        long_ago(tmp_path)
        assert only(tmp_path).state == "running"
    write(tmp_path / "run" / "trajectories" / "train" / "step_000002-1.jsonl", [training("a", 2)])
    assert only(tmp_path).state == "stopped"


@pytest.mark.parametrize(("other_device", "state"), [(0, "running"), (1, "stopped")])
def test_a_lock_of_a_file_on_another_device_is_not_the_runs(tmp_path, monkeypatch, other_device, state):
    folder = tmp_path / "one"
    begun(folder, RECORDS).close()
    long_ago(tmp_path)
    status = (folder / "journal").stat()
    device = f"{os.major(status.st_dev) + other_device:02x}:{os.minor(status.st_dev):02x}"
    monkeypatch.setattr(file_locks, "_LOCKS", tmp_path / "locks")
    file_locks._LOCKS.write_text(f"1: FLOCK  ADVISORY  WRITE 7 {device}:{status.st_ino} 0 EOF\n")
    assert only(tmp_path).state == state


def test_what_another_term_counts_as_right_is_no_exact_match(tmp_path):
    begun(tmp_path / "one", RECORDS, term="f1").close()
    assert (only(tmp_path).em, only(tmp_path).n) == (None, 2)


def test_a_run_with_a_report_is_finished_until_its_journal_grows(tmp_path):
    begun(tmp_path / "one", RECORDS).close()
    figures = {"em": {"all": {"value": 0.25, "episodes": 4}}}
    report = tmp_path / "one" / "report.json"
    report.write_text(json.dumps({"figures": figures}))
    run = only(tmp_path)
    assert (run.state, run.em, run.n) == ("finished", 0.25, 4)
    long_ago(tmp_path)
    os.utime(report, (1, 1))
    assert only(tmp_path).state == "stopped"


def test_a_copy_of_a_finished_evaluation_is_finished_whatever_the_times_of_its_files(tmp_path):
    begun(tmp_path / "one", [*RECORDS, record("d", right=True)]).close()
    report = tmp_path / "one" / "report.json"
    report.write_text(json.dumps({"figures": {"em": {"all": {"value": 0.5, "episodes": 4}}}}))
    long_ago(tmp_path)
    os.utime(report, (1, 1))
    assert (only(tmp_path).step, only(tmp_path).state) == (4, "finished")


@pytest.mark.parametrize("result", ["data_summary.json", "sft_summary.json", "corpus.json"])
def test_a_command_that_makes_data_has_finished_when_its_result_is_there(tmp_path, result):
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "settings.yaml").write_text("# rag-r1 data @settings.yaml --out OTHER\n")
    assert only(tmp_path).state == "running"
    (folder / result).write_text("{}")
    assert (only(tmp_path).state, only(tmp_path).command) == ("finished", None)


@pytest.mark.parametrize(("stopped", "state"), [(None, "finished"), ("too dear", "stopped")])
def test_a_summary_says_whether_the_run_was_stopped(tmp_path, stopped, state):
    begun(tmp_path / "one", RECORDS).close()
    (tmp_path / "one" / "summary.json").write_text(json.dumps({"stopped": stopped}))
    long_ago(tmp_path)
    assert only(tmp_path).state == state


def make_training(folder: Path, last: int, total: int | None = 3, ending: str = ".jsonl") -> None:
    (folder / "hydra" / ".hydra").mkdir(parents=True)
    (folder / "hydra" / ".hydra" / "config.yaml").write_text(
        f"trainer: {{total_training_steps: {'null' if total is None else total}}}\n"
    )
    lines = [{"step": 0, "data": {"val-aux/nq/em/mean@1": 0.2, "val-aux/hotpotqa/em/mean@1": 0.4}}]
    lines += [{"step": step, "data": {"search/em": 0.9}} for step in range(1, last + 1)]
    (folder / "metrics-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "{bro")
    write(folder / "trajectories" / "train" / f"step_{last:06d}-1.jsonl", [training("a", last)])
    validation = [record(name, step=0, split="val") for name in "abc"]
    write(folder / "trajectories" / "val" / f"step_000000-1{ending}", validation)
    long_ago(folder)


@pytest.mark.parametrize(
    ("last", "total", "state"), [(3, 3, "finished"), (2, 3, "stopped"), (2, None, "stopped")]
)
@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_a_training_has_its_steps_and_its_last_validation(tmp_path, last, total, state, ending):
    make_training(tmp_path / "grpo", last, total, ending)
    run = only(tmp_path)
    assert (run.kind, run.state, run.step, run.steps) == ("train", state, last, total)
    assert (run.em, run.n) == (pytest.approx(0.3), 3)


def test_a_broken_line_of_metrics_and_an_em_that_is_no_number_are_passed_over(tmp_path):
    make_training(tmp_path / "grpo", 2)
    lines = '{bro\n{"step": 3, "data": {"val-core/nq/em/mean@1": NaN}}\n'
    (tmp_path / "grpo" / "metrics-2.jsonl").write_text(lines)
    assert (only(tmp_path).step, only(tmp_path).em) == (3, None)


def test_a_stage_is_continued_by_the_command_of_its_stages(tmp_path):
    make_training(tmp_path / "out" / "stage1", 2)
    settings = tmp_path / "out" / "settings.yaml"
    settings.write_text(f"# rag-r1 stages @{settings} --out OTHER\n# Relative paths start at /work\n")
    long_ago(tmp_path)
    stages, stage = runs_below(tmp_path)
    assert stages.command == stage.command == f"cd /work && rag-r1 stages @{settings}"


@pytest.mark.parametrize(
    "text",
    ["# rag-r1 eval; rm -rf / @x\n", "# rm -rf /\n", "\0", "# rag-r1 ../x @\n", "# rag-r1 \x1b[2J @\n"],
)
def test_settings_of_strangers_name_no_command(tmp_path, text):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "settings.yaml").write_text(text)
    long_ago(tmp_path)
    assert only(tmp_path).command is None


ENDLESS = '{"figures": {"em": {"all": {"value": 1.0, "episodes": Infinity}}}}'


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"figures": 3}', "[" * 100_000, '{"settings": []}', ENDLESS], ids=range(7)
)
def test_files_that_say_nothing_are_passed_over(tmp_path, text):
    begun(tmp_path / "one", RECORDS).close()
    for name in ("report.json", "metrics.jsonl", "provenance.json"):
        (tmp_path / "one" / name).write_text(text)
    assert only(tmp_path).n == 2


def test_the_table_and_its_commands(tmp_path, capsys):
    begun(tmp_path / "one", RECORDS).close()
    make_training(tmp_path / "grpo", 3)
    long_ago(tmp_path)
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[2:4] == [
        "| grpo | train | finished | 3 of 3 | 0.300 | 3 | 1 d |",
        "| one | eval | stopped | 3 of 4 | 0.500 | 2 | 1 d |",
    ]
    assert out[4] == "go on with one:" and out[5].startswith("  cd ")
    assert main([str(tmp_path), "--as-json"]) == 0
    assert [run["state"] for run in json.loads(capsys.readouterr().out)] == ["finished", "stopped"]


def test_a_folder_without_runs_or_that_is_none(tmp_path, capsys):
    assert main([str(tmp_path)]) == 0 and str(tmp_path) in capsys.readouterr().out
    (tmp_path / "file").touch()
    for name, fault in (("nothing", "does not exist"), ("file", "is a file")):
        assert main([str(tmp_path / name)]) == 1
        assert f"{tmp_path / name} {fault}: give the folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_an_age_has_one_unit(seconds, text):
    assert age(seconds) == text
