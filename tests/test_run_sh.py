"""tests/run.sh: its help does nothing else, and its tally of several pytest processes is right."""

from __future__ import annotations

import os
import subprocess
import sys
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
