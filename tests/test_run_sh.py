"""tests/run.sh: what each tier runs, its status and its last line; its help does nothing else.

The script, its tally and pytest are real; the project is one of a few small tests, and its checks of style
are words.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_tells_the_tiers_and_makes_no_environment(tmp_path, word):
    environment = {**os.environ, "VENV": str(tmp_path / "venv"), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["bash", str(TESTS / "run.sh"), word], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stderr == ""
    assert all(f"bash tests/run.sh {tier}" in done.stdout for tier in ("unit", "full", "tests/agent"))
    assert "==" not in done.stdout and not (tmp_path / "venv").exists()


def junit(folder: Path, name: str, status: int | None, tests=0, failures=0, errors=0, skipped=0) -> None:
    if status is not None:
        (folder / f"{name}.status").write_text(f"{status}\n")
    (folder / f"{name}.xml").write_text(
        f'<testsuites><testsuite tests="{tests}" failures="{failures}" errors="{errors}" '
        f'skipped="{skipped}"/></testsuites>'
    )


def tally(folder: Path) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, str(TESTS / "tally.py"), str(folder)], capture_output=True, text=True
    )
    return done.stdout.splitlines()[-1], done.returncode


def test_the_last_line_counts_the_tests_of_all_processes(tmp_path):
    junit(tmp_path, "trainings", 0, tests=8, skipped=1)
    junit(tmp_path, "others", 0, tests=100, skipped=5)
    assert tally(tmp_path) == ("102 passed, 0 failed, 6 skipped", 0)


@pytest.mark.parametrize("broken", [{"failures": 1}, {"errors": 1}])
def test_a_failure_in_one_process_fails_the_run(tmp_path, broken):
    junit(tmp_path, "trainings", 1, tests=8, **broken)
    junit(tmp_path, "others", 0, tests=100)
    assert tally(tmp_path) == ("107 passed, 1 failed, 0 skipped", 1)


def test_a_process_that_was_cut_off_is_a_failure(tmp_path):
    (tmp_path / "trainings.status").write_text("137\n")
    junit(tmp_path, "others", 0, tests=100)
    assert tally(tmp_path) == ("100 passed, 1 failed, 0 skipped", 137)


def test_a_process_that_ended_badly_fails_the_run_whatever_it_counted(tmp_path):
    junit(tmp_path, "others", 3, tests=100)
    assert tally(tmp_path) == ("100 passed, 0 failed, 0 skipped", 3)


def test_a_process_for_which_no_test_was_chosen_is_no_failure_but_none_at_all_is(tmp_path):
    junit(tmp_path, "trainings", None)
    assert tally(tmp_path)[1] == 1
    junit(tmp_path, "others", 0, tests=3)
    assert tally(tmp_path) == ("3 passed, 0 failed, 0 skipped", 0)


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
def test_long(): assert os.environ["HYPOTHESIS_PROFILE"] == "full"
"""


@pytest.fixture
def project(tmp_path) -> Path:
    """A project of five tests, with the real run.sh."""
    for folder in ("tests", "scripts", "bin"):
        (tmp_path / folder).mkdir()
    for name in ("run.sh", "tally.py"):
        shutil.copy(TESTS / name, tmp_path / "tests" / name)
    (tmp_path / "tests" / "test_it.py").write_text(PROJECT)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  e2e\n  full\n")
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
    [(["unit"], 1), ([], 3), (["full"], 5), (["full", "-k", "long"], 2), (["tests", "-m", "slow"], 1)],
)
def test_a_tier_runs_its_tests_and_the_last_line_counts_them(project, arguments, passed):
    assert run(project, *arguments) == (f"{passed} passed, 0 failed, 0 skipped", 0)


@pytest.mark.slow
def test_a_training_that_fails_fails_the_run(project):
    assert run(project, BREAK_TRAINING="1") == ("2 passed, 1 failed, 0 skipped", 1)


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
