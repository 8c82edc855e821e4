"""A GGUF file becomes a Hugging Face folder with the same model: a tiny Llama that is written here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from rag_r1.inference.pretrained.gguf_conversion import build_tokenizer, check_tokenizer, convert
from rag_r1.runs.errors import RunError
from tests.inference.pretrained.tiny_gguf import CONTEXT, SPECIAL, TOKENS, tiny_llama, write_gguf


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> tuple[LlamaForCausalLM, Path]:
    """The model that was written to a file, and the folder of its conversion."""
    folder = tmp_path_factory.mktemp("gguf")
    model = tiny_llama(len(TOKENS))
    write_gguf(folder / "tiny.gguf", model, TOKENS)
    convert(folder / "tiny.gguf", folder / "out")
    return model, folder / "out"


def test_the_converted_model_computes_what_the_original_does(converted):
    model, folder = converted
    ids = torch.tensor([[3, 70, 100, 259, 5, 1, 2]])
    with torch.no_grad():
        wanted, got = model(ids).logits, AutoModelForCausalLM.from_pretrained(folder)(ids).logits
    assert torch.allclose(wanted, got, atol=1e-5) and wanted.abs().max() > 0.1


def test_a_conversation_is_chatml_and_ends_with_the_end_of_a_message(converted):
    tokenizer = AutoTokenizer.from_pretrained(converted[1])
    check_tokenizer(tokenizer)
    config = json.loads((converted[1] / "generation_config.json").read_text())
    end = TOKENS.index("<|im_end|>")
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (end, end)
    assert (config["eos_token_id"], config["pad_token_id"]) == (end, end)
    assert tokenizer.model_max_length == CONTEXT


def test_numbers_are_split_into_digits_and_words_are_merged(converted):
    tokenizer = AutoTokenizer.from_pretrained(converted[1])
    assert tokenizer.tokenize("the 12") == ["the", "Ġ", "1", "2"]


@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=40).filter(lambda text: not any(token in text for token in SPECIAL)))
def test_any_text_comes_back_as_it_was(converted, text):
    tokenizer = AutoTokenizer.from_pretrained(converted[1])
    text = text.encode("utf-8", "replace").decode("utf-8")
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize(
    ("tokens", "changes", "fault"),
    [
        (TOKENS, {"kind": "llama"}, "not byte-level BPE"),
        (TOKENS, {"template": None}, "no tokenizer.chat_template"),
        ([token for token in TOKENS if token != "<|im_end|>"], {}, r"has no <\|im_end\|>"),
    ],
)
def test_a_tokenizer_of_another_kind_is_refused(tmp_path, tokens, changes, fault):
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(len(tokens)), tokens, **changes)
    with pytest.raises(RunError, match=fault):
        build_tokenizer(tmp_path / "tiny.gguf")


def test_a_chat_template_of_another_kind_is_refused(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(len(TOKENS)), TOKENS, template="{{ messages }}")
    with pytest.raises(RunError, match="a conversation is written as"):
        convert(tmp_path / "tiny.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
