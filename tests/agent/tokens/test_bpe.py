"""tiktoken in the tokenizer's place gives the tokenizer's own ids, and stays away where it would not."""

import gzip
import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from rag_r1.agent.tokens.bpe import FastBpe
from rag_r1.demo.tokenizer import make_tokenizer
from rag_r1.demo.world import make_world
from tests.agent.quick_draws import mixed

pytest.importorskip("tiktoken")

DATA = Path(os.environ.get("RAG_R1_DATA") or Path(__file__).parents[4] / "shared" / "data")
CORPUS = DATA / "corpus" / "hotpotqa_corpus.jsonl.gz"
TAGS = ["<search>", "</search>", "Doc 1:"]
TEXTS = [passage["contents"] for passage in make_world(0, "train", people=200, places=40).passages]
TEXTS += [
    "Où est né l'écrivain ? C'est à Škofja Loka, I'LL bet.",
    "東京は日本の首都です。2026年",
    "\n\n  a\t\n b  ",
]
#: Letters, marks that NFC joins with the letter before them, blanks, digits, signs, parts of tags.
PIECES = [
    *"aesnoMTéŠ本は0123'’\"!<>/|_-.,;🙂\u0301\u0338\u200d\u00a0\u2028\x00",
    *TAGS,
    "'ll",
    "'S",
    "Mara ",
    "search",
]
TEXT = mixed([*PIECES, " ", "  ", "\n", "\r\n", "\t"], most=None, run=4)


def byte_level(pattern: str | None, cuts: bool = False, normalizer=None, texts=TEXTS, size=900):
    """A tokenizer of `size` tokens trained on `texts`. `pattern` None is GPT-2's own; `cuts`: as in Llama 3,
    words are looked up whole and every way to cut a token in two is a merge."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizer
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    trained.pre_tokenizer = pre_tokenizers.Sequence([*split, last])
    trained.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trained.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    if cuts:
        trained = changed(trained, every_cut)
    trained.add_special_tokens(["<|end|>"])
    trained.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(tokenizer_object=trained, eos_token="<|end|>")


def changed(tokenizer: Tokenizer, change) -> Tokenizer:
    """The tokenizer with its JSON changed in place by `change`."""
    spec = json.loads(tokenizer.to_str())
    change(spec)
    return Tokenizer.from_str(json.dumps(spec))


def every_cut(spec: dict) -> None:
    vocabulary = spec["model"]["vocab"]
    spec["model"]["ignore_merges"] = True
    spec["model"]["merges"] = [
        [token[:i], token[i:]]
        for token in sorted(vocabulary, key=vocabulary.get)
        for i in range(1, len(token))
        if token[:i] in vocabulary and token[i:] in vocabulary
    ]


TOKENIZERS = {
    "the demo's": make_tokenizer(TEXTS, TAGS),
    "as Qwen's": byte_level(PRETOKENIZE_REGEX, normalizer=normalizers.NFC()),
    "as Llama 3's": byte_level(PRETOKENIZE_REGEX, cuts=True),
    "as GPT-2's": byte_level(None),
    "an expression that leaves blanks between its matches": byte_level(r"\p{L}+|\p{N}+|[^\s\p{L}\p{N}]+"),
}
QUICK = {name: FastBpe.of(tokenizer) for name, tokenizer in TOKENIZERS.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=TEXT)
def test_ids_are_the_tokenizers(name, text):
    ids = TOKENIZERS[name].encode(text, add_special_tokens=False)
    assert QUICK[name].encode(text) == ids
    assert QUICK[name].decode(ids) == TOKENIZERS[name].decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_of_whole_documents_are_the_tokenizers(name):
    for text in ["\n".join(TEXTS), " ".join(TEXTS[:20]), "a" * 3000, " " * 3000, "\n" * 3000]:
        assert QUICK[name].encode(text) == TOKENIZERS[name].encode(text, add_special_tokens=False)


def test_a_text_for_which_tiktokens_expressions_run_out_of_room_is_left_to_the_tokenizer():
    quick = FastBpe(Mock(**{"encode.return_value": [7]}), QUICK["as GPT-2's"]._encoding)
    assert quick.encode(" " * 1_000_000) == [7]


@pytest.mark.full
@pytest.mark.skipif(
    not CORPUS.is_file(), reason="left out: no HotpotQA corpus (RAG_R1_DATA names its folder)"
)
@pytest.mark.parametrize("cuts", [False, True], ids=["as Qwen's", "as Llama 3's"])
def test_ids_of_a_real_corpus_are_those_of_a_tokenizer_of_usual_size(cuts):
    with gzip.open(CORPUS, "rt", encoding="utf-8") as rows:
        texts = [json.loads(row)["contents"] for row in rows]
    normalizer = None if cuts else normalizers.NFC()
    tokenizer = byte_level(PRETOKENIZE_REGEX, cuts, normalizer, texts, size=60_000)
    quick = FastBpe.of(tokenizer)
    assert [text for text in texts if quick.encode(text) != tokenizer.encode(text)] == []


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_tokens_are_left_out_of_the_text(name):
    tokenizer = TOKENIZERS[name]
    assert QUICK[name].decode([*tokenizer.encode("Mara"), tokenizer.eos_token_id]) == "Mara"


def test_a_token_that_no_merges_lead_to_is_not_made():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: id_ for id_, token in enumerate([*alphabet, "bc", "ab", "abc"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("b", "c"), ("a", "b"), ("ab", "c")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    a, bc = vocabulary["a"], vocabulary["bc"]
    assert FastBpe.of(wrapped).encode("abc") == wrapped.encode("abc") == [a, bc]


def not_all_cuts(spec: dict) -> None:
    every_cut(spec)
    merges = spec["model"]["merges"]
    built = ["".join(merge) for merge in merges]
    merges.pop(next(i for i, token in enumerate(built) if built.count(token) > 1))


def other_ids(spec: dict) -> None:
    vocabulary = spec["model"]["vocab"]
    first, last = ("".join(spec["model"]["merges"][i]) for i in (0, -1))
    vocabulary[first], vocabulary[last] = vocabulary[last], vocabulary[first]


def two_cuts(spec: dict) -> None:
    steps = spec["pre_tokenizer"]["pretokenizers"]
    steps.insert(0, {**steps[0], "pattern": {"Regex": r"\p{N}{1,3}"}})


REFUSED = {
    "merges drawn by lot": lambda spec: spec["model"].update(dropout=0.1),
    "a mark for words' ends": lambda spec: spec["model"].update(end_of_word_suffix="</w>"),
    "words looked up whole, and a cut without a merge": not_all_cuts,
    "ids in another order than merges": other_ids,
    "another normalizer": lambda spec: spec.update(normalizer={"type": "Lowercase"}),
    "two expressions in turn": two_cuts,
    "no cuts at all": lambda spec: spec.update(pre_tokenizer=None),
    "an empty sequence of cuts": lambda spec: spec["pre_tokenizer"].update(pretokenizers=[]),
    "a blank put before the text": lambda spec: spec["pre_tokenizer"]["pretokenizers"][-1].update(
        add_prefix_space=True
    ),
    "matches taken out": lambda spec: spec["pre_tokenizer"]["pretokenizers"][0].update(behavior="Removed"),
    "an added token that takes blanks along": lambda spec: spec["added_tokens"][-1].update(rstrip=True),
    "an added token that begins as another": lambda spec: spec["added_tokens"][-1].update(
        content="<search> x"
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tokenizer_of_another_kind_is_left_to_itself(name):
    tokenizer = changed(TOKENIZERS["as Qwen's"].backend_tokenizer, REFUSED[name])
    assert FastBpe.of(PreTrainedTokenizerFast(tokenizer_object=tokenizer)) is None


def test_so_is_one_that_is_no_byte_level_bpe():
    words = Tokenizer(models.WordPiece({"[UNK]": 0, "mara": 1}, unk_token="[UNK]"))
    assert FastBpe.of(PreTrainedTokenizerFast(tokenizer_object=words)) is None
    assert FastBpe.of(object()) is None


def test_so_is_one_that_has_its_own_way_to_encode_or_decode():
    class Upper(PreTrainedTokenizerFast):
        def encode(self, text, **options):
            return super().encode(text.upper(), **options)

    class Wrapper:
        def __getattr__(self, name):
            return getattr(TOKENIZERS["as Qwen's"], name)

    tokenizer = TOKENIZERS["as Qwen's"].backend_tokenizer
    assert FastBpe.of(PreTrainedTokenizerFast(tokenizer_object=tokenizer)) is not None
    assert FastBpe.of(Upper(tokenizer_object=tokenizer)) is None
    assert FastBpe.of(Wrapper()) is None
