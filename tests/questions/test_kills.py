"""Killed with SIGKILL and given again, `rag-r1 questions` ends with the files of an undisturbed run, and asks
nothing twice but what was under way."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from rag_r1.questions.command import main
from tests.evaluation.killed_runs import journals, killed_at, lines, written
from tests.questions.conftest import Served
from tests.questions.test_command import contents

KILLS, IN_FLIGHT = 8, 8

pytestmark = [pytest.mark.slow, pytest.mark.full]


def twice(out: Path) -> list[object]:
    """What the journals have more than once."""
    counts: Counter[object] = Counter()
    for path in journals(out):
        for line in lines(path):
            key = line.get("ask"), line.get("turn"), line.get("sha256"), line.get("query")
            counts[path.relative_to(out), key] += 1
    return [key for key, count in counts.items() if count > 1]


def test_a_run_killed_at_random_moments_ends_as_one_that_was_not(served: Served, tmp_path):
    assert main(served.words(tmp_path / "whole")) == 0
    whole, asked = written(tmp_path / "whole"), served.asked()
    out = tmp_path / "killed"
    words = served.words(out)
    moments = sorted(random.Random(0).sample(range(1, whole), KILLS))
    for count in moments:
        assert killed_at(["questions", *words], out, count), "each start was killed while it worked"
    assert main(words) == 0
    again = served.asked() - asked
    assert contents(out) == contents(tmp_path / "whole")
    assert twice(out) == [] and written(out) == whole
    repeated = {request: count - asked[request] for request, count in again.items() if count > asked[request]}
    assert set(again) <= set(asked), "the same requests"
    assert sum(repeated.values()) <= KILLS * IN_FLIGHT, "only what was under way at a kill"
