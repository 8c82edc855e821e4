"""Agentic RAG-R1's format rewards.

`agentic_rag_format` is that of its released code (src/models/reward.py, `format_reward`): 0.2 for each of the
tags that open and close a thought, a backtrack and a summary, if it occurs; 0.2 for each search up to three,
or, if there are more than three, -0.2 for each one beyond three; 0.4 if there is exactly one answer. The most
is 2.2.

`closed_block` is the one of its branch `verl_dev` (sp_r1_process_reward.py), which gives 0.9 for an answer
and 0.3 for a thought between both of its tags, spread over them. Its reward as a whole, with the judged term
`query_relevance` (judged.py), is recipes/agentic_rag/reward/verl_dev.yaml.

There the text is the prompt and the completion, so the prompt's own tags earn 1.6 before anything is
written, or in `verl_dev` the completion with its observations. Here it is the policy's text alone: neither
the prompt nor a document can earn anything.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal

from rag_r1.agent import Trajectory
from rag_r1.protocols import Protocol, Tag
from rag_r1.rewards.registry import register
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
    """The parts of the format's value: each tag's score at its occurrences. `value`, their sum, is not
    used."""
    dialect = trajectory_protocol(trajectory, protocol)
    text = trajectory.generated_text
    parts = []
    for role in ("think", "backtrack", "summary"):
        block = next((block for block in dialect.blocks if block.role == role), None)
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


def _tag_spans(tag: Tag, text: str) -> tuple[list[Span], list[Span]]:
    """The spans of the opening tags, and those of the closing ones."""
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
    """`each` for a tag and for a search, `answer` for exactly one answer: at most 2.2 by default, and below 0
    only with many searches.

    A protocol without a block for a backtrack or a summary earns nothing for it.
    """
    parts = _format_parts(
        trajectory, 0.0, each=each, most_searches=most_searches, answer=answer, protocol=protocol
    )
    return sum((part.value for part in parts), 0.0)


@register("closed_block")
def closed_block(
    trajectory: Trajectory,
    golds: list[str],
    *,
    role: Literal["think", "plan", "call", "answer", "summary", "backtrack"] = "answer",
    protocol: Protocol | None = None,
) -> list[float]:
    """1 if the policy wrote a block of this role with both of its tags, else 0. With several, each has an
    equal part, which counts for the turn in which it is closed.

    A protocol without such a block earns nothing.
    """
    dialect = trajectory_protocol(trajectory, protocol)
    ends = turn_ends(trajectory)
    scores = [0.0] * len(ends)
    block = next((block for block in dialect.blocks if block.role == role), None)
    if block is None:
        return scores
    blocks = whole_blocks(block, trajectory.generated_text)
    for _, end in blocks:
        scores[bisect_left(ends, end)] += 1.0 / len(blocks)
    return scores
