"""Engines over nf4 in this process; left out where bitsandbytes is not installed."""

from __future__ import annotations

import pytest
import torch

from tests.plugin.conftest import lone_worker  # noqa: F401


@pytest.fixture(scope="session")
def qwen(tmp_path_factory) -> str:
    """A model whose layers bitsandbytes quantises: two layers of 64, 50 ids."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

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
    folder = tmp_path_factory.mktemp("qwen")
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def worker(lone_worker):  # noqa: F811
    """The group of a training worker that is alone."""
    import verl  # noqa: F401
    from verl.utils.distributed import initialize_global_process_group_ray

    initialize_global_process_group_ray(timeout_second=60)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def free_port():
    from rag_r1.system.child_processes import free_port

    return free_port
