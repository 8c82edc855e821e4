"""A corpus of 20 passages, indexes of it, and tiny random BERT models. Nothing is downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retrieval_server.encode import vector_files
from retrieval_server.encode.encoder import Encoder
from retrieval_server.encode.options import EncoderOptions
from retrieval_server.indexing.builder import build_index
from retrieval_server.indexing.options import BuildOptions
from retrieval_server.search.index_source import IndexSource

from .builders import PASSAGES, build, write_jsonl
from .running import server_process, serving


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("corpus") / "towns.jsonl", PASSAGES)


@pytest.fixture(scope="session")
def bm25_index(corpus, tmp_path_factory) -> Path:
    return build(corpus, tmp_path_factory.mktemp("indexes") / "bm25")


@pytest.fixture(scope="session")
def bm25(bm25_index) -> IndexSource:
    return IndexSource.open(bm25_index)


@pytest.fixture(scope="session")
def make_bert(tmp_path_factory) -> Callable[..., Path]:
    """make_bert(name, pooling=None): a random 2-layer BERT in a folder of that name.

    With ``pooling`` the folder also gets the sentence-transformers configuration of a published model.
    """
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    split = pre_tokenizers.BertPreTokenizer()
    texts = [row["contents"].lower() for row in PASSAGES] + ["query: passage: represent this sentence ulm?"]
    words = {word for text in texts for word, _ in split.pre_tokenize_str(text)}
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    vocabulary = {word: i for i, word in enumerate([*special.values(), *sorted(words)])}
    words_to_ids = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    words_to_ids.normalizer = normalizers.Lowercase()
    words_to_ids.pre_tokenizer = split
    words_to_ids.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words_to_ids, model_max_length=64, **special)

    def make(name: str, pooling: str | None = None, seed: int = 0) -> Path:
        folder = tmp_path_factory.mktemp("models") / name
        folder.mkdir()
        torch.manual_seed(seed)
        config = BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
            initializer_range=0.5,  # far apart from each other, so that a wrong pooling shows
        )
        BertModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if pooling is not None:
            kinds = "sentence_transformers.models."
            modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
            described = [
                {"idx": i, "name": str(i), "path": path, "type": kinds + kind}
                for i, (path, kind) in enumerate(modules)
            ]
            (folder / "modules.json").write_text(json.dumps(described))
            (folder / "2_Normalize").mkdir()
            (folder / "1_Pooling").mkdir()
            modes = {
                f"pooling_mode_{name}": name.startswith(pooling) for name in ("cls_token", "mean_tokens")
            }
            modes |= {"word_embedding_dimension": 32, "pooling_mode_max_tokens": False}
            (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
        return folder

    return make


@pytest.fixture(scope="session")
def make_cross_encoder(make_bert, tmp_path_factory) -> Callable[[int], Path]:
    """make_cross_encoder(labels): a random cross-encoder that gives so many labels for a pair."""
    import torch
    from transformers import AutoConfig, AutoTokenizer, BertForSequenceClassification

    def make(labels: int):
        bert = make_bert(f"for-{labels}-labels")
        folder = tmp_path_factory.mktemp("cross-encoder")
        # Weights as large as the BERT's would multiply the rounding of a product to more than 1e-6.
        config = AutoConfig.from_pretrained(bert, num_labels=labels, initializer_range=0.1)
        torch.manual_seed(0)
        BertForSequenceClassification(config).save_pretrained(folder)
        AutoTokenizer.from_pretrained(bert).save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_bge(make_bert) -> Path:
    return make_bert("bge-small-en-v1.5")


@pytest.fixture(scope="session")
def encoder(tiny_bge) -> Encoder:
    return Encoder.create(str(tiny_bge), EncoderOptions(), device="cpu")


@pytest.fixture
def interrupted(monkeypatch) -> Callable[[BuildOptions], list[str]]:
    """interrupted(options): stops that build in its third block of 8; the texts encoded from then on."""
    encode, encoded, stops = Encoder.encode_passages, [], [True]

    def watched(self, passages, batch_size=64):
        if passages != ["probe"]:
            if stops and len(encoded) >= 16:
                raise KeyboardInterrupt
            encoded.extend(passages)
        return encode(self, passages, batch_size)

    def interrupt(options: BuildOptions) -> list[str]:
        monkeypatch.setattr(vector_files, "BLOCK", 8)
        monkeypatch.setattr(Encoder, "encode_passages", watched)
        with pytest.raises(KeyboardInterrupt):
            build_index(options)
        assert not options.out.exists() and len(encoded) == 16
        stops.clear()
        encoded.clear()
        return encoded

    return interrupt


@pytest.fixture(scope="session")
def dense_index(corpus, tiny_bge, tmp_path_factory) -> Path:
    return build(corpus, tmp_path_factory.mktemp("indexes") / "dense", "dense", encoder=str(tiny_bge))


@pytest.fixture(scope="module")
def client(bm25) -> Iterator:
    with serving(lambda: bm25) as ready:
        yield ready


@pytest.fixture(scope="session")
def serve() -> Callable:
    """The context manager ``serving``, for tests that need an app of their own."""
    return serving


@pytest.fixture(scope="session")
def start_server() -> Callable:
    """The context manager ``server_process``."""
    return server_process
