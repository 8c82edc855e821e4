"""A model folder that veRL can read (configuration and tokenizer, no tensors), and rows in veRL's form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from rag_r1.demo.tokenizer import make_tokenizer
from tests.recipes.composed_recipes import composed, user_values


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from safetensors.torch import save_file
    from transformers import Qwen2Config

    folder = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer(["Which river flows through Paris?"], ["<search>", "</search>"])
    tokenizer.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32768,
    )
    config.architectures = ["Qwen2ForCausalLM"]
    config.save_pretrained(folder)
    save_file({}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def compose(model_folder: Path) -> Callable[..., DictConfig]:
    """Composes a recipe with the values of a user and these overrides."""
    return lambda name, *overrides: composed(name, *user_values(model_folder), *overrides)
