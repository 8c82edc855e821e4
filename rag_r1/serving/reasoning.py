"""Extracts the reasoning from the text of a turn: everything but the tool call or answer, without tags.

`turn_reasoning` reads a whole turn. `StreamingReasoning` reads a turn while it is generated, and returns the
same text in pieces, up to the call or the answer.
"""

from __future__ import annotations

import re

from rag_r1.protocols import Protocol

#: Roles of the blocks whose text is not reasoning.
_ACTIONS = ("call", "answer")


def turn_reasoning(text: str, protocol: Protocol) -> str:
    """Return the text of a turn without its call or answer, and without the protocol's tags."""
    ends = [(end, block) for block in protocol.acting if (end := text.find(block.close)) >= 0]
    if ends:
        end, block = min(ends, key=lambda pair: pair[0])
        start = text.rfind(block.open, 0, end)
        text = text[: start if block.role in _ACTIONS and start >= 0 else end]
    return re.sub(_any_of(_tags(protocol)), "", text).strip()


class StreamingReasoning:
    """Extracts the reasoning of a turn while it is generated. Text that may still become a tag, or white
    space at the end of the reasoning, is held back until more text arrives. The time is linear in the length
    of the turn.

    After the call or the answer has begun, `ended` is true and all further text is ignored."""

    def __init__(self, protocol: Protocol):
        tags = _tags(protocol)
        self._tag = re.compile(_any_of(tags))
        self._tag_starts = {tag[:length] for tag in tags for length in range(1, len(tag) + 1)}
        self._longest_tag = max(map(len, tags))
        self._action_tags = {block.open for block in protocol.acting if block.role in _ACTIONS}
        self._possible_tag = ""  # the end of the text so far that may become a tag
        self._held_space: list[str] = []  # white space that may turn out to be trailing
        self._has_text = False
        self.ended = False

    def feed(self, piece: str) -> str:
        """Return the reasoning in the next piece of the turn."""
        if self.ended:
            return ""
        text = self._possible_tag + piece
        end = len(text) - self._tag_start_length(text)
        parts: list[str] = []
        position = 0
        for tag in self._tag.finditer(text):
            if tag.start() >= end:
                break
            parts.append(text[position : tag.start()])
            position = tag.end()
            if tag[0] in self._action_tags:
                self.ended = True
                return self._hold_back_trailing_space("".join(parts))
        parts.append(text[position:end])
        self._possible_tag = text[max(position, end) :]
        return self._hold_back_trailing_space("".join(parts))

    def _tag_start_length(self, text: str) -> int:
        """Return the number of characters at the end of a text that may be the beginning of a tag."""
        lengths = range(min(len(text), self._longest_tag), 0, -1)
        return next((length for length in lengths if text[-length:] in self._tag_starts), 0)

    def _hold_back_trailing_space(self, text: str) -> str:
        """Return the text without leading white space of the reasoning. Trailing white space is held back
        until more text arrives."""
        visible = text.rstrip()
        space = text[len(visible) :]
        if not visible:
            if self._has_text:
                self._held_space.append(space)
            return ""
        visible = "".join(self._held_space) + visible if self._has_text else visible.lstrip()
        self._held_space = [space]
        self._has_text = True
        return visible


def _tags(protocol: Protocol) -> list[str]:
    """Return all tags of the protocol's blocks."""
    return [tag for block in protocol.blocks for tag in (block.open, block.close) if tag]


def _any_of(tags: list[str]) -> str:
    """Return a pattern that matches any of the tags."""
    return "|".join(map(re.escape, tags))
