"""Finds the reasoning in the text of a turn: what the policy writes beside its call or answer, without tags.

`turn_reasoning` reads a whole turn; `StreamingReasoning` reads one that grows, and returns the same text in
pieces up to the call or the answer.
"""

from __future__ import annotations

import re

from rag_r1.protocols import Protocol

#: Roles of blocks whose text is not reasoning.
_ACTIONS = ("call", "answer")


def turn_reasoning(text: str, protocol: Protocol) -> str:
    """The text of a turn beside its call or answer, without the protocol's tags."""
    ends = [(end, i) for i, block in enumerate(protocol.acting) if (end := text.find(block.close)) >= 0]
    if ends:
        end, i = min(ends)
        block = protocol.acting[i]
        start = text.rfind(block.open, 0, end)
        text = text[: start if block.role in _ACTIONS and start >= 0 else end]
    return re.sub(_any_of(_tags(protocol)), "", text).strip()


class StreamingReasoning:
    """`turn_reasoning` for a turn that is still growing: emits text up to the call or answer, and holds back
    what may yet become a tag or trailing white space. Each character is looked at about once, however long
    the turn is.

    `ended`: nothing more comes."""

    def __init__(self, protocol: Protocol):
        tags = _tags(protocol)
        self._tag = re.compile(_any_of(tags))
        self._tag_starts = {tag[:length] for tag in tags for length in range(1, len(tag) + 1)}
        self._longest_tag = max(map(len, tags))
        self._action_tags = {block.open for block in protocol.acting if block.role in _ACTIONS}
        self._possible_tag = ""  # the end of the text so far, which may become a tag
        self._held_space: list[str] = []  # white space that may be at the end of the reasoning
        self._has_text = False
        self.ended = False

    def feed(self, piece: str) -> str:
        """Returns the reasoning that the next piece of the turn adds."""
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
        """The number of characters at the end of a text with which a tag may begin."""
        lengths = range(min(len(text), self._longest_tag), 0, -1)
        return next((length for length in lengths if text[-length:] in self._tag_starts), 0)

    def _hold_back_trailing_space(self, text: str) -> str:
        """The text without white space at the reasoning's begin; white space at its end waits for more."""
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
    return [tag for block in protocol.blocks for tag in (block.open, block.close) if tag]


def _any_of(tags: list[str]) -> str:
    """The pattern of any of these tags."""
    return "|".join(map(re.escape, tags))
