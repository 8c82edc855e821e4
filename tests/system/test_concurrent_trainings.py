"""A training is warned of others on its machine."""

from __future__ import annotations

import os
import subprocess
import sys

from rag_r1.system.concurrent_trainings import TRAINER, find_other_trainings, warn_of_other_trainings


def test_only_what_runs_verls_trainer_counts_and_not_this_process():
    processes = [
        (1, ["python", "-m", TRAINER, "a=b"]),
        (2, ["python", "train.py"]),
        (3, ["grep", f"x{TRAINER}"]),
    ]
    assert find_other_trainings([*processes, (os.getpid(), ["python", "-m", TRAINER]), (4, [])]) == [1]


def test_a_running_training_is_named_with_the_remedy(capsys):
    code = "print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    other = subprocess.Popen([sys.executable, "-c", code, TRAINER], **pipes)
    try:
        other.stdout.readline()  # before its first line, a process may have no command line yet
        assert other.pid in find_other_trainings()
        warn_of_other_trainings()
    finally:
        other.communicate()
    said = capsys.readouterr().out
    assert str(other.pid) in said and "one after the other" in said
