"""Defines the limits of an episode in an evaluation for each protocol, as in the published evaluations."""

from __future__ import annotations

# The recipes have the same limits (rag_r1/_common, checkpoints/released, r1_searcher/_common).
#: RAG-R1: five searches, and 1,024 tokens per turn.
_RAG_R1 = {"agent": {"max_turns": 5, "max_turn_tokens": 1024}}
#: R1-Searcher: eight searches of five documents, and 512 tokens per turn.
_R1_SEARCHER = {"agent": {"max_turns": 8, "max_turn_tokens": 512}, "retriever": {"topk": 5}}
#: Agentic RAG-R1: eight generations of at most 500 tokens, seven turns and a final one for the answer.
_AGENTIC_RAG = {"agent": {"max_turns": 7, "max_turn_tokens": 500}}
#: Limits by protocol. Search-R1 has four searches, and cuts each query's results to 500 tokens.
_LIMITS: dict[str, dict[str, dict[str, int]]] = {
    "search_r1": {"agent": {"max_turns": 4, "max_turn_tokens": 500, "max_query_observation_tokens": 500}},
    "r1_searcher": _R1_SEARCHER,
    "r1_searcher_instruct": _R1_SEARCHER,
    "agentic_rag_en": _AGENTIC_RAG,
    "agentic_rag_zh": _AGENTIC_RAG,
    "agentic_rag_ssrl": {"agent": {"max_turns": 7, "max_turn_tokens": 4000}},
    "agentic_rag_tools": {"agent": {"max_turns": 4, "max_turn_tokens": 1024}},
}


def validation_limits(protocol: str) -> dict[str, dict[str, int]]:
    """Return the keys of the block rag_r1, by section, with which a protocol is evaluated. A custom protocol
    gets the limits of RAG-R1."""
    return _LIMITS.get(protocol, _RAG_R1)
