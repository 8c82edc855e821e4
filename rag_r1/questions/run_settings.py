"""Collects the settings on which the questions of a run depend, which must not change when it is resumed."""

from __future__ import annotations

import hashlib
from typing import Any

from rag_r1.inference.client import key_of
from rag_r1.protocols import Protocol
from rag_r1.questions.passages.documents import PassagePool
from rag_r1.questions.prompts import Prompts
from rag_r1.questions.spec import QuestionsSpec
from rag_r1.rollouts.provenance_facts import describe_server, index_identity
from rag_r1.tools.retrieval.options import RetrieverConfig

#: A search returns so many passages more than the wanted neighbours, since it also finds the draft's own.
_EXTRA_PASSAGES = 6


def run_settings(spec: QuestionsSpec, pool: PassagePool, protocol: Protocol) -> dict[str, Any]:
    """Return all settings on which the questions depend, including what is read from files and the retrieval
    server. `protocol` has the prompt of the run. Raises RunError if the server does not answer."""
    config = retriever_of(spec)
    messages = "".join(message["content"] for message in protocol.messages("{question}"))
    served = index_identity(describe_server(config.base)["ready"])
    return {
        **spec.settings,
        "passages": pool.n_read,
        "corpus_sha256": pool.sha256,
        "prompts_sha256": prompts_of(spec).sha256,
        "prompt_sha256": hashlib.sha256(messages.encode()).hexdigest(),
        "retriever": {"topk": config.topk, "wire": config.wire, "served": served},
    }


def prompts_of(spec: QuestionsSpec) -> Prompts:
    """Return the prompts of the models, which must not contain their keys."""
    return Prompts(key_of(model.key_variable) for model in (spec.teacher, spec.reading))


def retriever_of(spec: QuestionsSpec) -> RetrieverConfig:
    """Return the options of the client with which the run searches."""
    rules = spec.verification
    topk = max(rules.topk, rules.neighbours + _EXTRA_PASSAGES)
    return RetrieverConfig(url=spec.retriever_url, wire=spec.wire, topk=topk, cache_size=0)
