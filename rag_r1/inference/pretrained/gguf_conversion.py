"""Converts a GGUF file of a Llama into a Hugging Face folder: weights, tokenizer, chat template.

The weights are dequantised by transformers. Its tokenizer is not used: of SmolLM2 it has `<|im_start|>` as
the end of a text, and no token for padding. So the tokenizer is built from the file's own metadata:
byte-level BPE, with single digits for the pre-tokenizer `smollm`, special tokens by their type, and with the
end of a message as the end of a text and as padding. What was built is checked (`check_tokenizer`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rag_r1.runs.errors import RunError

#: The types of GGUF's tokens that are special (`llama_token_type`): control tokens, and those of a user.
_SPECIAL = {3, 4}
#: `tokenizer.ggml.pre` of the tokenizers that split numbers into digits.
_SINGLE_DIGITS = {"smollm"}
END_OF_MESSAGE, START_OF_MESSAGE, END_OF_TEXT = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
#: Texts that a tokenizer has to give back as they are.
_ROUND_TRIPS = (
    "Heat (1995 film) was directed by Michael Mann.",
    "<search> São Paulo 12,000,000 </search>\n<answer> yes </answer>",
    "  two spaces\n\n\ttab — “quotes” 北京 🙂",
)


def convert(file: Path, out: Path, dtype: str = "float32") -> None:
    """Write the model in a GGUF file into a folder. Raises RunError if it is no Llama, or if its tokenizer
    is not as it should be."""
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = build_tokenizer(file)
    check_tokenizer(tokenizer)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=getattr(torch, dtype),
        local_files_only=True,
        trust_remote_code=False,
    )
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    ids["pad_token_id"] = tokenizer.pad_token_id
    for config in (model.config, model.generation_config):
        for name, value in ids.items():
            setattr(config, name, value)
    rows = model.get_input_embeddings().num_embeddings
    if rows != len(tokenizer):
        raise RunError(f"{file}: its tokenizer has {len(tokenizer):,} tokens, its model {rows:,}")
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def build_tokenizer(file: Path) -> Any:
    """The tokenizer in the metadata of a GGUF file, for transformers. Raises RunError if it is not a
    byte-level BPE with ChatML's tokens."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(file).fields

    def field(name: str) -> Any:
        if name not in fields:
            raise RunError(f"{file}: its metadata has no {name}")
        return fields[name].contents()

    if (kind := field("tokenizer.ggml.model")) != "gpt2":
        raise RunError(f"{file}: its tokenizer is {kind!r}, not byte-level BPE ('gpt2')")
    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in field("tokenizer.ggml.merges")]
    if missing := {END_OF_MESSAGE, START_OF_MESSAGE} - set(tokens):
        raise RunError(f"{file}: its tokenizer has no {', '.join(sorted(missing))}")
    bpe = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if _has_single_digits(fields) else []
    bpe.pre_tokenizer = pre_tokenizers.Sequence([*digits, bytes_of])
    bpe.decoder = decoders.ByteLevel()
    types = field("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, types, strict=True) if kind in _SPECIAL]
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=START_OF_MESSAGE,
        eos_token=END_OF_MESSAGE,
        pad_token=END_OF_MESSAGE,
        unk_token=END_OF_TEXT if END_OF_TEXT in tokens else None,
        clean_up_tokenization_spaces=False,
        model_max_length=int(field(f"{field('general.architecture')}.context_length")),
    )
    tokenizer.chat_template = field("tokenizer.chat_template")
    return tokenizer


def _has_single_digits(fields: Any) -> bool:
    pre = fields.get("tokenizer.ggml.pre")
    return pre is not None and pre.contents() in _SINGLE_DIGITS


def check_tokenizer(tokenizer: Any, texts: Iterable[str] = _ROUND_TRIPS) -> None:
    """Raises RunError unless texts come back as they were, the end of a text and padding are the end of a
    message, and a conversation is written as ChatML."""
    faults = [
        f"{text!r} comes back as {decoded!r}"
        for text in texts
        if (decoded := tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))) != text
    ]
    if (tokenizer.eos_token, tokenizer.pad_token) != (END_OF_MESSAGE, END_OF_MESSAGE):
        faults.append(f"it ends texts with {tokenizer.eos_token} and pads with {tokenizer.pad_token}")
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    chat_text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    expected = "".join(f"{START_OF_MESSAGE}{m['role']}\n{m['content']}{END_OF_MESSAGE}\n" for m in messages)
    if chat_text != f"{expected}{START_OF_MESSAGE}assistant\n":
        faults.append(f"a conversation is written as {chat_text!r}")
    for token in (START_OF_MESSAGE, END_OF_MESSAGE):
        if len(tokenizer.encode(token, add_special_tokens=False)) != 1:
            faults.append(f"{token} is several tokens")
    if faults:
        raise RunError(f"the tokenizer is not as the model's: {'; '.join(faults)}")
