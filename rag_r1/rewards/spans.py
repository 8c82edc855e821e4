"""Spans of characters in the `generated_text` of a trajectory, the concatenated texts of its turns.

A reward term finds tags and blocks in this text and pairs each part of its value with the spans that have
earned it (`SpanValue`). token_credit.py then distributes that part over the tokens in these spans.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate

from rag_r1.agent import Trajectory
from rag_r1.protocols import Tag

#: Start and end (exclusive) in characters of `Trajectory.generated_text`.
Span = tuple[int, int]


@dataclass(frozen=True)
class SpanValue:
    """A part of a term's value, and the spans that have earned it."""

    value: float
    spans: tuple[Span, ...]


def turn_ends(trajectory: Trajectory) -> list[int]:
    """Return the position in `generated_text` at which each turn ends."""
    return list(accumulate(len(turn.text) for turn in trajectory.turns))


def occurrences(string: str, text: str) -> list[Span]:
    """Return the spans of a non-empty string in a text, without overlaps."""
    return [match.span() for match in re.finditer(re.escape(string), text)]


def whole_blocks(tag: Tag, text: str) -> list[Span]:
    """Return the spans in a text from an opening tag to the next closing tag, including the tags."""
    blocks: list[Span] = []
    end = 0
    while (start := text.find(tag.open, end)) >= 0:
        closing = text.find(tag.close, start + len(tag.open))
        if closing < 0:  # a regular expression would look for it again from every further opening tag
            break
        end = closing + len(tag.close)
        blocks.append((start, end))
    return blocks
