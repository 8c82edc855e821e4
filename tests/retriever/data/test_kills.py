"""Killed with SIGKILL and given again, `rag-r1 retriever data` ends with the files of an undisturbed run."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from rag_r1.retriever.data import command
from tests.evaluation.killed_runs import journals, killed_at, lines, written
from tests.fakes.scored_world import scored_world

ARTEFACTS = (
    "candidates.jsonl",
    "passages.jsonl",
    "sub_answers.jsonl",
    "relevance.jsonl",
    "correctness.jsonl",
    "train.jsonl",
    "summary.json",
)
KILLS = 10

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def twice(out: Path) -> list[object]:
    """What the journals have more than once: answers by ask, turn and request, and results by their key."""
    counts: Counter[object] = Counter()
    for path in journals(out):
        for line in lines(path):
            answer = line.get("ask"), line.get("turn"), line.get("sha256")
            counts[path.relative_to(out), answer, str(line.get("key")), line.get("id")] += 1
    return [key for key, count in counts.items() if count > 1]


def test_a_run_killed_at_ten_random_moments_ends_as_one_that_was_not(tmp_path, tokenizer):
    def mood(case, said, attempt):
        """To every third case the judge says too much when it is first asked."""
        return said if attempt or len(said) % 3 else said + " as far as I can tell"

    few = ("--negatives", "3")
    with scored_world(tmp_path, tokenizer, count=8, mood=mood) as world:
        assert command.main(world.words(tmp_path / "whole", *few)) == 0
        whole, played, judged = written(tmp_path / "whole"), len(world.policy.bodies), len(world.judge.cases)
        out = tmp_path / "killed"
        args = world.words(out, *few)
        moments = sorted(random.Random(0).sample(range(1, whole), KILLS))
        kills = sum(killed_at(["retriever", "data", *args], out, count) for count in moments)
        assert kills == KILLS, "each start was killed while it worked"
        assert command.main(args) == 0
        asked_again = len(world.policy.bodies) - 2 * played
        judged_again = len(world.judge.cases) - 2 * judged
    for name in ARTEFACTS:
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert twice(out) == [] and written(out) == whole
    # Only what was under way at a kill is asked again.
    assert 0 <= asked_again <= KILLS * 8 and 0 <= judged_again <= KILLS * 8
