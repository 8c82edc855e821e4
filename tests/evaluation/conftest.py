"""The tokenizers of the demo's policies."""

from __future__ import annotations

import pytest

from rag_r1.demo.policy import policy_path


@pytest.fixture(scope="session")
def mq_tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(policy_path("rag_r1_mq"))


@pytest.fixture(scope="session")
def sq_tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(policy_path("rag_r1_sq"))
