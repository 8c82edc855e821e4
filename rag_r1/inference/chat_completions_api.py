"""Reads replies of the chat completions API, `/v1/chat/completions`."""

from __future__ import annotations

from typing import Any

from rag_r1.inference.episode_client import Reply, finish_fields
from rag_r1.inference.response_metadata import first_choice, message_text
from rag_r1.protocols.actions import well_formed

#: The path below the address of an endpoint.
PATH = "/chat/completions"
#: The value of `Reply.finish` if the endpoint's content filter withheld the text.
WITHHELD = "content_filter"


def read_chat(data: Any) -> Reply:
    """Return the reply in an answer of the chat API; its text is empty if a filter withheld some of it.
    Raises ValueError if there is no message, or an empty one."""
    choice = first_choice(data)
    if choice.get("finish_reason") == WITHHELD:
        return Reply("", **finish_fields(choice))
    content = message_text(choice)
    if content is None:
        raise ValueError("its message has no content")
    if not content.strip():
        raise ValueError("its message is empty")
    return Reply(well_formed(content), **finish_fields(choice))
