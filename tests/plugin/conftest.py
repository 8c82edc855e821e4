"""A tokenizer whose tokens are bytes, a sampler over a store in memory, the environment of a worker."""

from __future__ import annotations

import socket

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="session")
def tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return fast


@pytest.fixture
def datasets_cache(tmp_path, monkeypatch):
    """What veRL reads through the package datasets is copied to here and not into the home of the user."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.fixture
def lone_worker(monkeypatch):
    """The environment variables of a training worker that is alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {
        "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DIST_INIT_METHOD", raising=False)


@pytest.fixture
def make(monkeypatch):
    """Makes a sampler over a store in memory, from groups of rewards and its options."""
    from tests.plugin.store_in_memory import make_buffer

    return lambda *groups, **options: make_buffer(monkeypatch, groups, **options)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> str:
    """A model of two layers and 50 ids."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return str(folder)
