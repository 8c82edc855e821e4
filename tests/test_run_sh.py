"""tests/run.sh: what each tier runs, its status and its last line; its help does nothing else.

The script, its tally and pytest are real; the project is one of a few small tests, and its checks of style
are words.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests import durations, tally

TESTS = Path(__file__).parent


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_tells_the_tiers_and_makes_no_environment(tmp_path, word):
    environment = {**os.environ, "VENV": str(tmp_path / "venv"), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["bash", str(TESTS / "run.sh"), word], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stderr == ""
    assert all(
        f"bash tests/run.sh {tier}" in done.stdout for tier in ("unit", "full", "nightly", "tests/agent")
    )
    assert "==" not in done.stdout and not (tmp_path / "venv").exists()


def test_a_path_that_is_not_there_is_refused_before_an_environment_is_made(tmp_path):
    environment = {**os.environ, "VENV": str(tmp_path / "venv")}
    words = ["bash", str(TESTS / "run.sh"), "tests/nothing"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "tests/nothing" in done.stderr and not (tmp_path / "venv").exists()


def write_results(folder: Path, **results: dict[str, int]) -> None:
    """The files of processes, by name: the exit status, unless no test was chosen, and the counts."""
    for name, counts in results.items():
        counts = dict(counts)
        if (status := counts.pop("status", None)) is not None:
            (folder / f"{name}.status").write_text(f"{status}\n")
        numbers = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0) | counts
        attributes = " ".join(f'{key}="{number}"' for key, number in numbers.items())
        (folder / f"{name}.xml").write_text(f"<testsuites><testsuite {attributes}/></testsuites>")


HUNDRED = {"status": 0, "tests": 100}
RESULTS = {
    "all processes": (
        {"trainings": {"status": 0, "tests": 8, "skipped": 1}, "others": {**HUNDRED, "skipped": 5}},
        ("102 passed, 0 failed, 6 skipped", 0),
    ),
    "a failure in one process": (
        {"trainings": {"status": 1, "tests": 8, "failures": 1}, "others": HUNDRED},
        ("107 passed, 1 failed, 0 skipped", 1),
    ),
    "an error in one process": (
        {"trainings": {"status": 1, "tests": 8, "errors": 1}, "others": HUNDRED},
        ("107 passed, 1 failed, 0 skipped", 1),
    ),
    "a process that ended badly, whatever it counted": (
        {"others": {"status": 3, "tests": 100}}, ("100 passed, 0 failed, 0 skipped", 3),
    ),
    "one of two processes had no test": (
        {"trainings": {}, "others": {"status": 0, "tests": 3}}, ("3 passed, 0 failed, 0 skipped", 0),
    ),
    "no process had a test": ({"trainings": {}}, ("0 passed, 0 failed, 0 skipped", 1)),
}  # fmt: skip


@pytest.mark.parametrize(("results", "expected"), RESULTS.values(), ids=RESULTS)
def test_the_last_line_and_the_status_are_those_of_all_processes(tmp_path, capsys, results, expected):
    write_results(tmp_path, **results)
    status = tally.main(str(tmp_path))
    assert (capsys.readouterr().out.splitlines()[-1], status) == expected


def test_a_process_that_was_cut_off_is_a_failure(tmp_path, capsys):
    write_results(tmp_path, others=HUNDRED)
    (tmp_path / "second-tools-1.xml").write_text('<testsuites><testsuite tests="100" fail')
    assert tally.main(str(tmp_path)) == 1
    (tmp_path / "trainings.status").write_text("137\n")
    assert tally.main(str(tmp_path)) == 137
    last = [line for line in capsys.readouterr().out.splitlines() if "passed" in line]
    assert last == ["100 passed, 1 failed, 0 skipped", "100 passed, 2 failed, 0 skipped"]


def test_the_tests_that_failed_are_named_before_the_last_line(tmp_path):
    (tmp_path / "first-agent-1.xml").write_text(
        '<testsuites><testsuite tests="2" failures="1">'
        '<testcase classname="tests.agent.test_a" name="test_b"><failure/></testcase>'
        '<testcase classname="tests.agent.test_a" name="test_c"/></testsuite></testsuites>'
    )
    (tmp_path / "second.status").write_text("137\n")
    command = [sys.executable, str(TESTS / "tally.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 137 and done.stdout.splitlines() == [
        "failed: second (cut off)",
        "failed: tests.agent.test_a::test_b",
        "1 passed, 2 failed, 0 skipped",
    ]


def shares(tests: Path) -> dict[str, list[str]]:
    return runpy.run_path(str(TESTS / "shares.py"))["shares"](tests)


def test_every_file_of_tests_is_in_one_share():
    files = [file for share in shares(TESTS).values() for file in share]
    assert sorted(files) == sorted(str(path) for path in TESTS.rglob("test_*.py"))


def test_shares_are_even_and_those_with_the_dearest_imports_come_first(tmp_path):
    for folder, number in {
        **{"tools": 1, "chaos": 2, "plugin": 13, "evaluation/deep": 25, ".": 1},
        **{"retrieval_server/encode": 1, "retrieval_server/search": 1, "retrieval_server/web": 1},
    }.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for file in range(number):
            (tmp_path / folder / f"test_{file:02}.py").touch()
    sizes = {share: len(files) for share, files in shares(tmp_path).items()}
    assert list(sizes.items()) == [
        ("plugin-1", 6),
        ("plugin-2", 7),
        ("chaos-1", 2),
        ("retrieval_server-heavy-1", 2),
        ("evaluation-1", 8),
        ("evaluation-2", 8),
        ("evaluation-3", 9),
        ("retrieval_server-1", 1),
        ("tests-1", 1),
        ("tools-1", 1),
    ]


PROJECT = """
import os, pytest

def test_unit(): pass

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.e2e
def test_training(): assert not os.environ.get("BREAK_TRAINING")

@pytest.mark.e2e
@pytest.mark.full
def test_long_training(): pass

@pytest.mark.full
def test_long(): assert os.environ["HYPOTHESIS_PROFILE"] in ("full", "nightly")

@pytest.mark.nightly
def test_installation(): assert os.environ["HYPOTHESIS_PROFILE"] == "nightly"
"""


def test_a_run_updates_the_seconds_of_the_functions_that_it_had(tmp_path):
    times = {"test_a[1]": 1.5, "test_a[2]": 1, "test_b": 0.1, "test_d": 3}
    cases = "".join(f'<testcase classname="tests.x.test_y" name="{n}" time="{t}"/>' for n, t in times.items())
    (tmp_path / "first.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    (tmp_path / "trainings.xml").write_text((tmp_path / "first.xml").read_text())
    names = {letter: f"tests/x/test_y.py::test_{letter}" for letter in "abcd"}
    old = {names["b"]: 5.0, names["c"]: 7.0, "tests/gone.py::test_gone": 9.0}
    shorter = Counter({names["d"]: 2.5})
    new = durations.updated(old, [durations.measured(tmp_path), shorter], set(names.values()))
    assert new == {names["a"]: 2.5, names["c"]: 7.0, names["d"]: 2.5}


def test_every_function_with_a_duration_exists():
    assert set(durations.read()) <= durations.functions(TESTS)


@pytest.fixture
def project(tmp_path) -> Path:
    """A project of six tests, with the real run.sh."""
    for folder in ("tests", "scripts", "bin"):
        (tmp_path / folder).mkdir()
    for name in ("run.sh", "shares.py", "tally.py"):
        shutil.copy(TESTS / name, tmp_path / "tests" / name)
    (tmp_path / "tests" / "test_it.py").write_text(PROJECT)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  e2e\n  full\n  nightly\n")
    (tmp_path / "scripts" / "setup_env.sh").write_text(
        f'PATH="$PWD/bin:{Path(sys.executable).parent}:$PATH"\n'
    )
    for name in ("ruff", "lint-imports"):
        (tmp_path / "bin" / name).write_text('#!/bin/sh\necho checked; [ -z "$BREAK_STYLE" ]\n')
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


#: pytest starts in a fraction of the time without those that these tests do not need.
FEW_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}


def run(project: Path, *arguments: str, **variables: str) -> tuple[str, int]:
    """The last line, and the status."""
    done = subprocess.run(
        ["bash", str(project / "tests" / "run.sh"), *arguments],
        env={**os.environ, **FEW_PLUGINS, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout.splitlines()[-1], done.returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        (["unit"], 1),
        ([], 3),
        (["full"], 5),
        (["nightly"], 6),
        (["full", "-k", "long"], 2),
        (["tests", "-m", "slow"], 1),
    ],
)
def test_a_tier_runs_its_tests_and_the_last_line_counts_them(project, arguments, passed):
    assert run(project, *arguments) == (f"{passed} passed, 0 failed, 0 skipped", 0)


@pytest.mark.slow
def test_a_function_that_takes_long_is_in_the_tier_of_its_seconds(project):
    for name in ("__init__.py", "conftest.py", "durations.py"):
        shutil.copy(TESTS / name, project / "tests" / name)
    rows = "# a machine\n3.0 tests/test_it.py::test_slow\n0.5 tests/test_it.py::test_unit\n"
    (project / "tests" / "durations.txt").write_text(rows + "9.0 tests/test_it.py::test_training\n")
    assert [run(project, *tier)[0].split()[0] for tier in (["unit"], [], ["full"])] == ["0", "2", "5"]


@pytest.mark.slow
def test_the_files_of_a_run_are_kept_where_they_are_asked_for(project, tmp_path):
    run(project, "unit", TEST_RESULTS=str(tmp_path / "kept"))
    assert set(durations.measured(tmp_path / "kept")) == {"tests/test_it.py::test_unit"}


@pytest.mark.slow
def test_a_training_that_fails_fails_the_run(project):
    assert run(project, BREAK_TRAINING="1") == ("2 passed, 1 failed, 0 skipped", 1)


#: Two tests of a folder; each notes the process in which it runs. `wait` is for what another one noted.
NOTING = """
import os, time

def note(name):
    with open("ran", "a") as file: file.write(f"{name} {os.getpid()}\\n")

def wait(name):
    end = time.monotonic() + 60
    while f"{name} " not in open("ran").read():
        assert time.monotonic() < end, "it was never run"
        time.sleep(0.02)

def test_a(): note("FOLDER-a")

def test_b(): note("FOLDER-b"); THEN
"""


def write_folders(project: Path, folders: dict[str, str]) -> None:
    """A folder of two tests for each name, and what the second does in the end."""
    for folder, then in folders.items():
        (project / "tests" / folder).mkdir()
        text = NOTING.replace("FOLDER", folder).replace("THEN", then)
        (project / "tests" / folder / f"test_{folder}.py").write_text(text)


@pytest.mark.slow
def test_two_processes_share_the_tests_and_each_runs_once(project):
    folders = dict.fromkeys(("plugin", "chaos", "agent", "rewards", "tools"), "pass")
    # The front of the list and the back: one process alone would wait in vain.
    write_folders(project, {**folders, "plugin": "wait('tools-a')", "tools": "wait('plugin-a')"})
    assert run(project, "unit") == ("11 passed, 0 failed, 0 skipped", 0)
    ran = [line.split() for line in (project / "ran").read_text().splitlines()]
    assert sorted(name for name, _ in ran) == sorted(
        f"{folder}-{test}" for folder in folders for test in "ab"
    )
    assert len({process for _, process in ran}) == 2


@pytest.mark.slow
def test_a_process_that_dies_fails_the_run_and_the_other_takes_what_is_left(project):
    write_folders(project, {"plugin": "os._exit(7)", "agent": "pass", "rewards": "pass", "tools": "pass"})
    assert run(project, "unit") == ("7 passed, 1 failed, 0 skipped", 1)


@pytest.mark.slow
def test_a_file_that_cannot_be_imported_fails_the_run_and_the_others_are_run(project):
    write_folders(project, {"plugin": "pass", "tools": "pass"})
    (project / "tests" / "agent").mkdir()
    (project / "tests" / "agent" / "test_agent.py").write_text("import no_such_module\n")
    assert run(project, "unit") == ("5 passed, 1 failed, 0 skipped", 1)


@pytest.mark.slow
def test_no_share_is_begun_after_a_failure_with_x(project):
    write_folders(
        project, {name: "assert False" for name in ("plugin", "chaos", "agent", "rewards", "tools")}
    )
    line, status = run(project, "unit", "-x")
    failed = int(line.split()[2])
    assert status == 1 and 1 <= failed <= 2


@pytest.mark.slow
def test_style_that_fails_fails_the_run_after_the_tests(project):
    assert run(project, "unit", BREAK_STYLE="1") == ("1 passed, 0 failed, 0 skipped", 1)


@pytest.mark.slow
def test_tests_that_are_told_to_end_clean_up_first(tmp_path):
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "test_long.py").write_text(
        "import time\nfrom pathlib import Path\n\nHERE = Path(__file__).parent\n\n\n"
        "def test_long():\n    try:\n        (HERE / 'started').touch()\n        time.sleep(300)\n"
        "    finally:\n        (HERE / 'cleaned').touch()\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=tmp_path, env=environment)
    try:
        while not (tmp_path / "started").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 143
    finally:
        process.kill()
    assert (tmp_path / "cleaned").exists()
