"""A tiny random BERT, a corpus of 24 passages, and rows to train on."""

from __future__ import annotations

import json
from pathlib import Path

COLOURS, ANIMALS, VERBS = "red blue green black white brown", "cat dog cow hen", "runs sits eats sees"
WORDS = f"{COLOURS} {ANIMALS} {VERBS} fox owl bee ant".split()
_PAIRS = [(a, b, c) for a in COLOURS.split() for b, c in zip(ANIMALS.split(), VERBS.split(), strict=True)]
PASSAGES = {f"p{i}": f'"{a} {b}"\nThe {a} {b} {c}.' for i, (a, b, c) in enumerate(_PAIRS)}

#: Settings of an encoder (EncoderSettings).
ENCODER = {
    "pooling": "mean",
    "normalize": True,
    "query_prefix": "",
    "passage_prefix": "",
    "separator": " [SEP] ",
    "max_length": 512,
    "mode": "agentic",
}


def tiny_bert(folder: Path, *, sentence: bool = True, sep: str = "[SEP]") -> Path:
    """A random BERT of one layer; with `sentence` as a sentence-transformers folder with mean pooling."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": sep}
    others = ["the", "what", "query", "passage"]
    vocabulary = {word: i for i, word in enumerate([*special.values(), *WORDS, *others])}
    words = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    ends = [(token, vocabulary[token]) for token in ("[CLS]", sep)]
    words.post_processor = processors.TemplateProcessing(single=f"[CLS] $A {sep}", special_tokens=ends)
    bare = folder if not sentence else folder.with_name(f"{folder.name}-bare")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(vocabulary), max_position_embeddings=64, **sizes)
    BertModel(config).save_pretrained(bare)
    PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=64, **special).save_pretrained(bare)
    if sentence:
        transformer = Transformer(str(bare))
        SentenceTransformer(modules=[transformer, Pooling(16, pooling_mode="mean")]).save(str(folder))
    return folder


def row(number: int, **changed) -> dict:
    """A training row: a question about a passage, the query, the passage and two negatives."""
    first = PASSAGES[f"p{number}"].splitlines()[1]
    return {
        "dataset": "animals",
        "query_id": f"q{number}",
        "question": f"what {first}",
        "round_index": 1,
        "history_queries": [],
        "query_text": first.split()[2],
        "passage_ids": [f"p{number}", f"p{(number + 1) % 24}", f"p{(number + 5) % 24}"],
        "scores": [{"em": 1.0, "local_utility": 0.9}, {"em": 0.0, "local_utility": 0.4}]
        + [{"em": 0.0, "local_utility": 0.1}],
        **changed,
    }


def write_lines(path: Path, *rows: object) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def files(folder: Path, rows=None) -> tuple[Path, Path]:
    """The files of rows and corpus."""
    corpus = [{"id": name, "contents": text} for name, text in PASSAGES.items()]
    lines = [row(number) for number in range(12)] if rows is None else rows
    return write_lines(folder / "rows.jsonl", *lines), write_lines(folder / "corpus.jsonl", *corpus)
