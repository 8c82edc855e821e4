"""Handles stop strings in replies: cuts a text at the first one, and restores one that the endpoint left out.

Most endpoints leave out the stop string at which generation ended. It is restored from the endpoint's report
if there is one (vLLM), and otherwise as the closing tag of the block that is still open. Text after the first
stop string, from an endpoint that ignores stop strings, is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_r1.inference.episode_client import Reply
from rag_r1.protocols import Protocol


def close_at_stop(reply: Reply, protocol: Protocol, stop: Sequence[str]) -> str:
    """Return the reply's text up to and including the first stop string, which is restored if the endpoint
    left it out. Nothing is added to a text that was cut off by its length limit."""
    text = reply.text
    ends = [start + len(string) for string in stop if (start := text.find(string)) >= 0]
    if ends:
        return text[: min(ends)]
    if reply.finish == "length":
        return text
    if reply.knows_stop:
        return text + (reply.stopped_at if reply.stopped_at in stop else "")
    return text + _missing_closing_tag(text, protocol)


def _missing_closing_tag(text: str, protocol: Protocol) -> str:
    """Return the closing tag of the action block that is open at the end of the text; "" if no block is
    open. If another tag follows the opening one, the opening tag was only mentioned (`<think> I could
    <search> </think>`), and nothing is missing."""
    block = max(protocol.acting, key=lambda block: text.rfind(block.open))
    start = text.rfind(block.open)
    if start < 0:
        return ""
    body = text[start + len(block.open) :]
    tags = (tag for other in protocol.blocks for tag in (other.open, other.close))
    was_cut = block.close in protocol.stop and not any(tag in body for tag in tags)
    return block.close if was_cut else ""
