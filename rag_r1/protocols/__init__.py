"""Protocols: prompts, tags, query syntax and observation formats as data. How they work: `protocol.py`."""

from rag_r1.protocols.actions import Action, Answer, Document, Failure, Invalid, Search
from rag_r1.protocols.loading import ProtocolError, load_protocol, protocol_names
from rag_r1.protocols.neutralise import control_tokens
from rag_r1.protocols.protocol import Protocol, Tag, Tags

__all__ = [
    "Action",
    "Answer",
    "Document",
    "Failure",
    "Invalid",
    "Protocol",
    "ProtocolError",
    "Search",
    "Tag",
    "Tags",
    "control_tokens",
    "load_protocol",
    "protocol_names",
]
