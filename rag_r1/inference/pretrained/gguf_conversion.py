"""Converts a GGUF file of a Llama model into a Hugging Face folder: weights, tokenizer, chat template.

transformers dequantises the weights. The tokenizer that it derives from the file is not used: for SmolLM2 it
ends texts with `<|im_start|>` and has no padding token. Instead, the tokenizer is built from the file's
metadata. It is a byte-level BPE that splits numbers into digits for the pre-tokenizer `smollm`, takes its
special tokens from the types of the tokens, and uses the end of a message as the end of a text and as
padding. `check_tokenizer` checks the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_r1.runs.errors import RunError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: GGUF's types of special tokens (`llama_token_type`): control tokens and user-defined tokens.
_SPECIAL_TYPES = {3, 4}
#: Values of `tokenizer.ggml.pre` for tokenizers that split numbers into digits.
_SPLITS_DIGITS = {"smollm"}
END_OF_MESSAGE, START_OF_MESSAGE, END_OF_TEXT = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
#: Texts that must not change when they are encoded and decoded.
_ROUND_TRIPS = (
    "Heat (1995 film) was directed by Michael Mann.",
    "<search> São Paulo 12,000,000 </search>\n<answer> yes </answer>",
    "  two spaces\n\n\ttab — “quotes” 北京 🙂",
)


def convert(file: Path, out: Path, dtype: str = "float32") -> None:
    """Write the model in a GGUF file into the folder `out`. Raises RunError if its tokenizer cannot be built,
    fails `check_tokenizer`, or differs from the model in its number of tokens."""
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
    for config in (model.config, model.generation_config):
        config.bos_token_id = tokenizer.bos_token_id
        config.eos_token_id = tokenizer.eos_token_id
        config.pad_token_id = tokenizer.pad_token_id
    if (embeddings := model.get_input_embeddings().num_embeddings) != len(tokenizer):
        raise RunError(
            f"{file} has {len(tokenizer):,} tokens, but {embeddings:,} embeddings: use another file"
        )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def build_tokenizer(file: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer described by the metadata of a GGUF file. Raises RunError if it is not a
    byte-level BPE with the tokens of ChatML."""
    from gguf import GGUFReader
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(file).fields

    def field(name: str) -> Any:
        if name not in fields:
            raise RunError(f"{file}: its metadata has no {name}")
        return fields[name].contents()

    if (kind := field("tokenizer.ggml.model")) != "gpt2":
        raise RunError(f"{file}: its tokenizer is {kind!r}, not byte-level BPE ('gpt2')")
    tokens = field("tokenizer.ggml.tokens")
    if missing := {END_OF_MESSAGE, START_OF_MESSAGE} - set(tokens):
        raise RunError(f"{file}: its tokenizer has no {', '.join(sorted(missing))}")
    types = field("tokenizer.ggml.token_type")
    pre = fields.get("tokenizer.ggml.pre")
    splits_digits = pre is not None and pre.contents() in _SPLITS_DIGITS
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_byte_level_bpe(tokens, field("tokenizer.ggml.merges"), types, splits_digits),
        bos_token=START_OF_MESSAGE,
        eos_token=END_OF_MESSAGE,
        pad_token=END_OF_MESSAGE,
        unk_token=END_OF_TEXT if END_OF_TEXT in tokens else None,
        clean_up_tokenization_spaces=False,
        model_max_length=int(field(f"{field('general.architecture')}.context_length")),
    )
    tokenizer.chat_template = field("tokenizer.chat_template")
    return tokenizer


def _byte_level_bpe(
    tokens: Sequence[str], merges: Sequence[str], types: Sequence[int], splits_digits: bool
) -> Any:
    """Return a byte-level BPE tokenizer.

    - `types`: the GGUF type of each token, which marks the special ones
    - `merges`: the merges, each written as `left right`
    - `splits_digits`: whether numbers are split into single digits
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate(tokens)}
    bpe = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(merge.split(" ", 1)) for merge in merges]))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if splits_digits else []
    bpe.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    bpe.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind in _SPECIAL_TYPES]
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return bpe


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str] = _ROUND_TRIPS) -> None:
    """Raise RunError unless the tokenizer restores texts, ends and pads texts with the end of a message, and
    formats a conversation as ChatML."""
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
        raise RunError(f"the tokenizer has faults: {'; '.join(faults)}: use the model's other --source")
