"""Protocols: prompts, tags, query syntax and observation formats as data.

`protocol.py` explains how a protocol works, `loader.py` the YAML files, `blocks.py` and `actions.py` the
blocks that a policy writes and the actions that follow from them.
"""

from rag_r1.protocols.actions import (
    SEARCH,
    Action,
    Answer,
    Backtrack,
    CachedDocuments,
    Call,
    Calls,
    Document,
    Failure,
    Invalid,
    Plan,
    Refusal,
    Search,
    Summary,
    Think,
    text_result,
)
from rag_r1.protocols.blocks import Tag, Tags
from rag_r1.protocols.chat_turns import ChatTemplateError
from rag_r1.protocols.loader import (
    ProtocolError,
    load_protocol,
    load_with_prompt,
    protocol_names,
    read_prompt,
)
from rag_r1.protocols.neutraliser import control_tokens
from rag_r1.protocols.protocol import Protocol

__all__ = [
    "SEARCH",
    "Action",
    "Answer",
    "Backtrack",
    "CachedDocuments",
    "Call",
    "Calls",
    "ChatTemplateError",
    "Document",
    "Failure",
    "Invalid",
    "Plan",
    "Protocol",
    "ProtocolError",
    "Refusal",
    "Search",
    "Summary",
    "Tag",
    "Tags",
    "Think",
    "control_tokens",
    "text_result",
    "load_protocol",
    "load_with_prompt",
    "protocol_names",
    "read_prompt",
]
