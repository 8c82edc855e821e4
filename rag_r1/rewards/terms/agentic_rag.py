"""The format rewards of Agentic RAG-R1: the terms `agentic_rag_format` and `closed_block`.

`agentic_rag_format` is the reward of the released code (`format_reward` in src/models/reward.py), at most
2.2:

- 0.2 for each tag that opens or closes a thought, a backtrack or a summary, if it occurs;
- 0.2 for each search if there are at most three, else -0.2 for each search beyond three;
- 0.4 if there is exactly one answer.

`closed_block` is from the branch `verl_dev` (sp_r1_process_reward.py), which gives 0.9 for an answer and 0.3
for a thought between both of its tags, spread over all of them. recipes/agentic_rag/reward/verl_dev.yaml has
the reward of that branch as a whole, with the judged term `query_relevance` (judged.py).

The original scores the prompt and the completion, so the tags in the prompt earn 1.6 before anything is
written; `verl_dev` scores the completion with its observations. Here only the policy's text is scored, so
neither the prompt nor a document can earn anything.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal

from rag_r1.agent import Trajectory
from rag_r1.protocols import Protocol, Tag
from rag_r1.protocols.blocks import Block
from rag_r1.rewards.registry import register, zero_to_one
from rag_r1.rewards.spans import Span, SpanValue, occurrences, turn_ends, whole_blocks
from rag_r1.rewards.trajectory_protocol import trajectory_protocol


def _format_parts(
    trajectory: Trajectory,
    value: float,
    *,
    each: float = 0.2,
    most_searches: int = 3,
    answer: float = 0.4,
    protocol: Protocol | None = None,
) -> list[SpanValue]:
    """Return the parts of the format reward, each with the tags that have earned it. `value`, their sum, is
    not used."""
    dialect = trajectory_protocol(trajectory, protocol)
    text = trajectory.generated_text
    parts = []
    for role in ("think", "backtrack", "summary"):
        block = _first_block(dialect, role)
        for tag in (block.open, block.close) if block is not None else ():
            if spans := occurrences(tag, text):
                parts.append(SpanValue(each, tuple(spans)))
    starts, ends = _tag_spans(dialect.tags.search, text)
    if searches := min(len(starts), len(ends)):
        score = each * (searches if searches <= most_searches else most_searches - searches)
        parts.append(SpanValue(score, (*starts[:searches], *ends[:searches])))
    starts, ends = _tag_spans(dialect.tags.answer, text)
    if len(starts) == len(ends) == 1:
        parts.append(SpanValue(answer, (*starts, *ends)))
    return parts


def _first_block(dialect: Protocol, role: str) -> Block | None:
    """Return the protocol's first block of a role; None if it has none."""
    return next((block for block in dialect.blocks if block.role == role), None)


def _tag_spans(tag: Tag, text: str) -> tuple[list[Span], list[Span]]:
    """Return the spans of the opening and of the closing tags."""
    return occurrences(tag.open, text), occurrences(tag.close, text)


@register("agentic_rag_format", parts=_format_parts)
def agentic_rag_format(
    trajectory: Trajectory,
    golds: list[str],
    *,
    each: float = 0.2,
    most_searches: int = 3,
    answer: float = 0.4,
    protocol: Protocol | None = None,
) -> float:
    """Return the format reward: `each` for a tag and for a search, `answer` for exactly one answer. By
    default it is at most 2.2, and below 0 only with many searches.

    In a protocol without backtracks or summaries nothing is earned for these.
    """
    parts = _format_parts(
        trajectory, 0.0, each=each, most_searches=most_searches, answer=answer, protocol=protocol
    )
    return sum((part.value for part in parts), 0.0)


@register("closed_block", values=zero_to_one)
def closed_block(
    trajectory: Trajectory,
    golds: list[str],
    *,
    role: Literal["think", "plan", "call", "answer", "summary", "backtrack"] = "answer",
    protocol: Protocol | None = None,
) -> list[float]:
    """Return one number for each turn. If the policy wrote a block of this role with both of its tags, they
    sum to 1: each of several such blocks earns an equal part for the turn in which it is closed.

    Otherwise all numbers are 0, as they are in a protocol without such a block.
    """
    dialect = trajectory_protocol(trajectory, protocol)
    ends = turn_ends(trajectory)
    scores = [0.0] * len(ends)
    block = _first_block(dialect, role)
    blocks = whole_blocks(block, trajectory.generated_text) if block is not None else ()
    for _, end in blocks:
        scores[bisect_left(ends, end)] += 1.0 / len(blocks)
    return scores
