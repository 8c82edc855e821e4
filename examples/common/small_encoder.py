"""Makes a small encoder for the demo world: a two-layer BERT with one token for each word.

Without training it measures shared words: its random embeddings are nearly orthogonal, its layers change them
little, and the mean over the tokens compares how often each word occurs. This is the retriever from which
training starts. The folder has the format of sentence-transformers, like that of any other encoder.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rag_r1.demo.names import NAME_WORDS, TRADE, YEARS
from rag_r1.io.atomic_files import atomic_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_COMMON_WORDS = 'the was born in a town year company founded by where when were and of founder ? . , " :'
_SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
_WIDTH, _LAYERS, _HEADS, _MAX_TOKENS = 128, 2, 4, 256


def make_encoder(folder: Path) -> Path:
    """Write the untrained encoder, which is always the same, into `folder` unless it exists; returns the
    folder. Raises OSError if it cannot be written."""
    if (folder / "modules.json").exists():
        return folder
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel

    tokenizer = _tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=_WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        intermediate_size=2 * _WIDTH,
        max_position_embeddings=_MAX_TOKENS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
        torch.manual_seed(0)
        bert = BertModel(config)
    with TemporaryDirectory() as bare, atomic_file(folder) as part:  # bare: without pooling
        bert.save_pretrained(bare)
        tokenizer.save_pretrained(bare)
        modules = [Transformer(bare), Pooling(_WIDTH, pooling_mode="mean"), Normalize()]
        SentenceTransformer(modules=modules).save(str(part), create_model_card=False)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are whole words: the world's names and the words of its sentences."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [word.lower() for word in (*NAME_WORDS, *TRADE, *YEARS)]
    tokens = dict.fromkeys([*_SPECIAL.values(), *words, *_COMMON_WORDS.split()])
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=_SPECIAL["unk_token"]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=_MAX_TOKENS, **_SPECIAL)
