"""Agentic RAG-R1's format reward.

As in its released code (src/models/reward.py, `format_reward`): 0.2 for each of the tags that open and close
a thought, a backtrack and a summary, if it occurs; 0.2 for each search up to three, or -0.2 for each one
beyond three if there are more; 0.4 if there is exactly one answer. The most is 2.2.

There the text is the prompt and the completion, so the prompt's own tags earn 1.6 before anything is
written. Here it is the policy's text alone: neither the prompt nor a document can earn anything.
"""

from __future__ import annotations

from rag_r1.agent import Trajectory
from rag_r1.protocols import Protocol
from rag_r1.rewards.dialect import protocol_of
from rag_r1.rewards.registry import register


@register("agentic_rag_format")
def agentic_rag_format(
    trajectory: Trajectory,
    golds: list[str],
    *,
    each: float = 0.2,
    most_searches: int = 3,
    answer: float = 0.4,
    protocol: Protocol | None = None,
) -> float:
    """`each` for a tag and for a search, `answer` for exactly one answer: at most 2.2 by default, and below 0
    only with many searches.

    A protocol without a block for a backtrack or a summary earns nothing for it.
    """
    dialect, text = protocol_of(trajectory, protocol), trajectory.generated_text
    score = 0.0
    for role in ("think", "backtrack", "summary"):
        block = next((block for block in dialect.blocks if block.role == role), None)
        if block is not None:
            score += each * ((block.open in text) + (block.close in text))
    search, final = dialect.tags.search, dialect.tags.answer
    searches = min(text.count(search.open), text.count(search.close))
    score += each * (searches if searches <= most_searches else most_searches - searches)
    if text.count(final.open) == text.count(final.close) == 1:
        score += answer
    return score
