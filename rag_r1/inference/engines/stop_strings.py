"""Stop strings in replies: cuts a text at the first one, and puts one back that an endpoint has left out.

Most endpoints leave out the stop string at which they ended. It is put back: the one that the endpoint names
(vLLM does), or else the closing tag of the block that is still open. What was written behind the first stop
string, by an endpoint that ignores them, is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_r1.inference.episode_client import Reply
from rag_r1.protocols import Protocol


def close_at_stop(reply: Reply, protocol: Protocol, stop: Sequence[str]) -> str:
    """The reply's text up to and with the first stop string, which is put back if the endpoint has left it
    out. Nothing is added to a text that ended because it was too long."""
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
    """The closing tag of the block that acts and is open at the end of the text; empty if none is. A tag
    behind its opening shows that the opening was only mentioned (`<think> I could <search> </think>`)."""
    block = max(protocol.acting, key=lambda block: text.rfind(block.open))
    start = text.rfind(block.open)
    if start < 0:
        return ""
    body = text[start + len(block.open) :]
    tags = (tag for other in protocol.blocks for tag in (other.open, other.close))
    was_cut = block.close in protocol.stop and not any(tag in body for tag in tags)
    return block.close if was_cut else ""
