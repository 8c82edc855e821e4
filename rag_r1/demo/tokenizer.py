"""Makes the tokenizer of a demo policy: a byte-level BPE like Qwen2's, trained on the words of the demo.

For a folder with a Qwen2 config, `AutoTokenizer` builds a `Qwen2Tokenizer` from the vocabulary and the
merges, and always uses Qwen2's pre-tokenizer, whatever the saved file says. The merges are therefore trained
with this pre-tokenizer, so that vLLM and the trainer get the same tokens as this module. Every word of the
world is one token. Tags, years (which Qwen2 would split into digits) and the fixed parts of an observation
are added tokens, but not special ones, so that they remain visible in decoded text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

END, START, PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(texts: Iterable[str], units: Iterable[str]) -> Qwen2Tokenizer:
    """Make a tokenizer in which each pre-token of `texts` and each string of `units` is one token.

    `texts` are samples of what the policy reads and writes; their pre-tokens are words and runs of
    punctuation. `units` become added tokens: tags, years, fixed parts of an observation.
    """
    # Imported here, because it imports torch, which callers that need no tokenizer should not wait for.
    from transformers import Qwen2Tokenizer
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    units = sorted(set(units))
    model = _trained_model(texts, units, PRETOKENIZE_REGEX)
    tokenizer = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(merge) for merge in model["merges"]],
        unk_token=PAD,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens([AddedToken(string, special=False, normalized=False) for string in units])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _trained_model(texts: Iterable[str], units: Sequence[str], pretokenizer: str) -> dict[str, Any]:
    """Train a BPE in which each pre-token of the texts is one token; returns its `vocab` and `merges`.

    `pretokenizer` is the regular expression of the pre-tokens.
    """
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.NFC()
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pretokenizer), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    # Added tokens are split off before the pre-tokenizer sees a text, so the same is done here.
    splitter = Tokenizer(models.BPE())
    splitter.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(string, behavior="isolated") for string in sorted(units, key=len, reverse=True)]
    )
    parts = {part for text in texts for part, _ in splitter.pre_tokenizer.pre_tokenize_str(text)}
    trained.train_from_iterator(
        sorted(parts - set(units)),
        trainers.BpeTrainer(
            vocab_size=100_000,  # never reached: training ends when every pre-token is one token
            min_frequency=1,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    return json.loads(trained.to_str())["model"]
