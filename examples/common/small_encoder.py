"""Makes a small encoder for the demo world: a two-layer BERT with one token for each word.

Without training it measures shared words: its random embeddings are nearly orthogonal, its layers change them
little, and the mean over the tokens compares how often each word occurs. This is the retriever from which
training starts. The folder has the format of sentence-transformers, like that of any other encoder.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rag_r1.demo.names import NAME_WORDS, TRADE, YEARS
from rag_r1.io.atomic_files import atomic_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_COMMON_WORDS = 'the was born in a town year company founded by where when were and of founder ? . , " :'
_SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
WIDTH, LAYERS, HEADS, MAX_TOKENS = 128, 2, 4, 256


def make_encoder(folder: Path) -> Path:
    """Write the untrained encoder into `folder`, unless it exists; returns the folder."""
    if (folder / "modules.json").exists():
        return folder
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel

    tokenizer = _tokenizer()
    bare = folder.with_name(f"{folder.name}.bare")  # a folder of transformers, without pooling
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=MAX_TOKENS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    BertModel(config).save_pretrained(bare)
    tokenizer.save_pretrained(bare)
    transformer = Transformer(str(bare))
    encoder = SentenceTransformer(modules=[transformer, Pooling(WIDTH, pooling_mode="mean"), Normalize()])
    with atomic_file(folder) as part:
        encoder.save(str(part), create_model_card=False)
        shutil.rmtree(bare)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are whole words: the world's names and the words of its sentences."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [word.lower() for word in (*NAME_WORDS, *TRADE, *YEARS)]
    tokens = dict.fromkeys([*_SPECIAL.values(), *words, *_COMMON_WORDS.split()])
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=MAX_TOKENS, **_SPECIAL)
