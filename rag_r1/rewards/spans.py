"""Character spans of the policy's text, and the values that belong to them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate

from rag_r1.agent import Trajectory
from rag_r1.protocols import Tag

#: From, to (exclusive), in characters.
Span = tuple[int, int]


@dataclass(frozen=True)
class SpanValue:
    """A part of a term's value, and the spans that it is about."""

    value: float
    spans: list[Span]


def turn_ends(trajectory: Trajectory) -> list[int]:
    """Where each turn ends in the text of all."""
    return list(accumulate(len(turn.text) for turn in trajectory.turns))


def occurrences(string: str, text: str) -> list[Span]:
    """Where `string` stands in `text`."""
    return [match.span() for match in re.finditer(re.escape(string), text)]


def whole_blocks(tag: Tag, text: str) -> list[Span]:
    """The blocks from an opening tag to the next closing one, tags included."""
    blocks: list[Span] = []
    end = 0
    while (start := text.find(tag.open, end)) >= 0:
        closing = text.find(tag.close, start + len(tag.open))
        if closing < 0:  # a regular expression would look for it again from every further opening tag
            break
        end = closing + len(tag.close)
        blocks.append((start, end))
    return blocks
