"""Attention of packed rows: each row is computed as if it were alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen2ForCausalLM

from rag_r1.plugin.cpu.packed_attention import PACKED_SDPA
from tests.fakes.small_qwen import save_small_qwen

LENGTHS = [5, 1, 17, 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_small_qwen(tmp_path_factory.mktemp("model"))


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters()]


def test_packed_rows_give_the_logits_and_gradients_of_each_row_alone(folder):
    rows = [torch.randint(0, 50, (1, length)) for length in LENGTHS]
    alone = Qwen2ForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    packed = Qwen2ForCausalLM.from_pretrained(folder, attn_implementation=PACKED_SDPA)
    expected = torch.cat([alone(row).logits for row in rows], dim=1)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    logits = packed(torch.cat(rows, dim=1), position_ids=positions, use_cache=False).logits
    assert torch.allclose(logits, expected, atol=1e-5)
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    (logits * weights).sum().backward()
    for ours, theirs in zip(gradients(packed), gradients(alone), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_padded_rows_are_refused_since_padding_would_be_attended_to(folder):
    rows = torch.zeros(2, 6, dtype=torch.long)
    model = Qwen2ForCausalLM.from_pretrained(folder, attn_implementation=PACKED_SDPA)
    with pytest.raises(ValueError, match="use_remove_padding=true"):
        model(rows, attention_mask=torch.ones_like(rows), use_cache=False)
