"""R1-Searcher's classes of difficulty (arXiv 2503.05592): easy, medium and hard questions."""

from __future__ import annotations

EASY, MEDIUM, HARD = "easy", "medium", "hard"


def difficulty_class(rollouts: int, right: bool) -> str | None:
    """The class of a question after `rollouts` rollouts, of which only the last was right or, if not `right`,
    none; None if more rollouts must tell."""
    if right:
        return EASY if rollouts < 10 else MEDIUM if rollouts <= 20 else HARD
    return HARD if rollouts > 20 else None
