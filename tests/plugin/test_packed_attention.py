"""Attention of packed rows: each row is computed as if it were alone."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rag_r1.plugin.cpu.packed_attention import PACKED_SDPA

LENGTHS = [5, 1, 17, 3]


def model(attention: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config)


def gradients(net: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in net.parameters()]


def test_packed_rows_give_the_logits_and_gradients_of_each_row_alone():
    rows = [torch.randint(0, 40, (1, length)) for length in LENGTHS]
    alone, packed = model("sdpa"), model(PACKED_SDPA)
    expected = torch.cat([alone(row).logits for row in rows], dim=1)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    logits = packed(torch.cat(rows, dim=1), position_ids=positions, use_cache=False).logits
    assert torch.allclose(logits, expected, atol=1e-6)
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    (logits * weights).sum().backward()
    for ours, theirs in zip(gradients(packed), gradients(alone), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_padded_rows_are_refused_since_padding_would_be_attended_to():
    rows = torch.zeros(2, 6, dtype=torch.long)
    with pytest.raises(ValueError, match="use_remove_padding=true"):
        model(PACKED_SDPA)(rows, attention_mask=torch.ones_like(rows), use_cache=False)
