"""Writes a tiny Llama into a GGUF file, as llama.cpp's converter does."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

HEADS, KEY_HEADS, WIDTH, LAYERS, CONTEXT = 4, 2, 64, 2, 128
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
#: Names of the weights in GGUF, by those of transformers.
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def byte_characters() -> list[str]:
    """The characters that stand for the 256 bytes in a byte-level BPE."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def tiny_llama(rows: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=rows,
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KEY_HEADS,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
        )
    ).eval()


def rotated(weight: np.ndarray, heads: int) -> np.ndarray:
    """The rows of a query or key matrix in llama.cpp's order of the rotary halves."""
    size = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, size, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: LlamaForCausalLM, tokens: list[str], **changes: object) -> None:
    """A file as llama.cpp's converter writes it; `changes`: other metadata, None leaves a key out."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(str(changes.get("kind", "gpt2")))
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges([f"{a} {b}" for a, b in (("t", "h"), ("th", "e"), ("1", "2"))])
    if (template := changes.get("template", CHATML)) is not None:
        writer.add_chat_template(str(template))
    for name, weight in model.state_dict().items():
        array = weight.numpy()
        if name == "model.embed_tokens.weight":
            writer.add_tensor("token_embd.weight", array)
        elif name == "model.norm.weight":
            writer.add_tensor("output_norm.weight", array)
        elif name.startswith("model.layers."):
            _, _, layer, *rest, _ = name.split(".")
            own = ".".join(rest)
            if own in ("self_attn.q_proj", "self_attn.k_proj"):
                array = rotated(array, HEADS if own == "self_attn.q_proj" else KEY_HEADS)
            writer.add_tensor(f"blk.{layer}.{NAMES[own]}.weight", np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


TOKENS = [*SPECIAL, *byte_characters(), "th", "the", "12"]
