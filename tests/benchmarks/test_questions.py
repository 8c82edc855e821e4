"""The benchmark of `rag-r1 questions`: what it prints for a small world, and that its bars hold there."""

import re

import pytest

from .conftest import run_script


@pytest.mark.slow
def test_faulty_questions_are_refused_for_the_right_reason_and_good_ones_are_kept(tmp_path):
    size = ("--people", 60, "--places", 20, "--seed", 3)
    lines = run_script("benchmarks/questions.py", "--work", tmp_path, *size).splitlines()
    faulty, refused = re.fullmatch(r"faulty: ([\d,]+), ([\d.]+)% refused for .*", lines[-2]).groups()
    good, lost = re.fullmatch(r"good: ([\d,]+), ([\d.]+)% lost", lines[-1]).groups()
    assert int(faulty) > 100 and int(good) > 100
    assert float(refused) >= 95 and float(lost) <= 5
    planted = {line.split(" | ")[0].strip("| ") for line in lines if line.startswith("| ")}
    assert planted >= {"ambiguous", "dangling", "invented_answer", "leak", "malformed", "wrong_answer"}


@pytest.mark.slow
def test_late_kinds_of_faults_are_refused_too_and_the_card_agrees_with_the_logs(tmp_path):
    size = ("--people", 60, "--places", 20, "--seed", 3)
    lines = run_script("benchmarks/questions.py", "--work", tmp_path, "--late", *size).splitlines()
    [late] = [line for line in lines if line.startswith("late: ")]
    count, refused = re.fullmatch(r"late: ([\d,]+), ([\d.]+)% refused for .*", late).groups()
    assert int(count) > 60 and float(refused) >= 85
    [seeds_kept] = [line for line in lines if line.startswith("yield: ")]
    in_card, in_files = re.match(r"yield: ([\d.]+)% in the card, ([\d.]+)% in the files", seeds_kept).groups()
    assert in_card == in_files
    for role in ("teacher", "reader"):
        [cost] = [line for line in lines if line.startswith(f"{role}: cost")]
        in_card, in_log = re.match(r"\w+: cost ([\d.]+) in the card, ([\d.]+) by", cost).groups()
        assert in_card == in_log and float(in_log) > 0
