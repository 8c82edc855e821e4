"""The memory's warm start: tokens for tags and words, made once, loadable as the trainer loads it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from examples.memory.warm_start import (
    EMBEDDED,
    WARM,
    add_memory_tokens,
    measure_memory,
    memory_base,
    memory_protocol,
    warm_start,
)
from examples.memory.world import pages_data
from rag_r1.agent import TokenizerCodec
from rag_r1.demo.policy import load_policy, policy_path
from rag_r1.protocols import load_protocol

pytestmark = pytest.mark.slow  # a policy is made

PROTOCOL = memory_protocol("agentic_rag_en")


def test_every_tag_is_one_token_and_the_known_ones_begin_as_the_bases():
    model, tokenizer = add_memory_tokens(PROTOCOL)
    before, base_tokenizer = load_policy(policy_path(EMBEDDED))
    weights, base = model.get_input_embeddings().weight, before.get_input_embeddings().weight
    assert model.config.vocab_size == len(tokenizer) == len(weights)
    for block in PROTOCOL.blocks:
        for tag in (block.open, block.close):
            assert len(tokenizer(tag, add_special_tokens=False).input_ids) == 1
    for words in ("think", "answer", "information"):
        ours, theirs = (getattr(protocol.tags, words) for protocol in (PROTOCOL, load_protocol(EMBEDDED)))
        row = weights[tokenizer.convert_tokens_to_ids(ours.close)]
        assert torch.equal(row, base[base_tokenizer.convert_tokens_to_ids(theirs.close)])
    codec = TokenizerCodec(tokenizer)
    assert len(codec.encode(" [Wiki_RAG]: Mara Torval")) == 3
    reference = "\nMara Torval: see Besa Grigard."
    assert codec.decode(codec.encode(reference)) == reference


def test_a_warm_start_is_made_once_and_can_be_measured(tmp_path):
    two = replace(WARM, steps=2, warmup=1)
    base = memory_base(tmp_path / "base", phase=two)
    folder = warm_start(tmp_path / "policy", PROTOCOL, base, phase=two)
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert memory_base(base) == base and warm_start(folder, PROTOCOL, base) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "policy"]
    results = measure_memory(folder, PROTOCOL, pages_data(0, train=3, val=6), questions=3)
    assert set(results) == {"greedy", "sampled"}
    assert {"all", "summary", "backtrack", "token limit"} <= set(results["greedy"])
