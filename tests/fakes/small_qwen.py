"""A tiny Qwen2 whose layers are wide enough to be quantised: two layers of 64, 50 ids."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM


def save_small_qwen(folder: Path) -> Path:
    """Write the model, the same each time, and return the folder."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=50,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder
