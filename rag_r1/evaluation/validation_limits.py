"""Defines the limits of an episode in an evaluation for each protocol, as in the published evaluations."""

from __future__ import annotations

#: RAG-R1: five searches, and 1,024 tokens per turn. The recipe is rag_r1/_common.
_RAG_R1 = {"agent": {"max_turns": 5, "max_turn_tokens": 1024}}
#: R1-Searcher: eight searches of five documents, and 512 tokens per turn. The recipe is r1_searcher/_common.
_R1_SEARCHER = {"agent": {"max_turns": 8, "max_turn_tokens": 512}, "retriever": {"topk": 5}}
#: Agentic RAG-R1: eight generations of at most 500 tokens, seven turns and a final one for the answer. The
#: recipe is agentic_rag/_common, which also limits the tokens of a whole episode.
_AGENTIC_RAG = {"agent": {"max_turns": 7, "max_turn_tokens": 500}}
#: Limits by protocol.
_LIMITS: dict[str, dict[str, dict[str, int]]] = {
    # Four searches, of which each query's results are cut to 500 tokens (checkpoints/released/_search_r1).
    "search_r1": {"agent": {"max_turns": 4, "max_turn_tokens": 500, "max_query_observation_tokens": 500}},
    "r1_searcher": _R1_SEARCHER,
    "r1_searcher_instruct": _R1_SEARCHER,
    "agentic_rag_en": _AGENTIC_RAG,
    "agentic_rag_zh": _AGENTIC_RAG,
    # A turn holds several steps and the observations, which the policy writes itself.
    "agentic_rag_ssrl": {"agent": {"max_turns": 7, "max_turn_tokens": 4000}},
    # Five turns with the final one (agentic_rag/grpo_tools).
    "agentic_rag_tools": {"agent": {"max_turns": 4, "max_turn_tokens": 1024}},
}


def validation_limits(protocol: str) -> dict[str, dict[str, int]]:
    """Return the keys of the block rag_r1, by section, with which a protocol is evaluated. A custom protocol
    gets the limits of RAG-R1."""
    return _LIMITS.get(protocol, _RAG_R1)
