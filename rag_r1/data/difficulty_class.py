"""Classifies questions as easy, medium or hard by the number of rollouts they take, as in R1-Searcher.

Source: R1-Searcher (arXiv 2503.05592). A question is rolled out until an answer is right: it is easy if that
takes fewer than 10 rollouts, medium up to 20, and otherwise hard.
"""

from __future__ import annotations

from typing import Literal

DifficultyClass = Literal["easy", "medium", "hard"]
EASY, MEDIUM, HARD = "easy", "medium", "hard"
#: The most rollouts that an easy and a medium question take.
_MOST_FOR_EASY, _MOST_FOR_MEDIUM = 9, 20


def difficulty_class(rollouts: int, right: bool) -> DifficultyClass | None:
    """Return the class of a question after `rollouts` rollouts. `right` says whether the last one was right;
    the earlier ones were wrong. Returns None after up to 20 wrong ones: a question is hard only from its 21st
    rollout on."""
    if rollouts > _MOST_FOR_MEDIUM:
        return HARD
    if not right:
        return None
    return EASY if rollouts <= _MOST_FOR_EASY else MEDIUM
