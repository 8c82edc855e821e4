"""The codec gives what the tokenizer gives, and asks it once for a text that returns."""

from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import TokenizerCodec
from rag_r1.demo.tokenizer import make_tokenizer

TOKENIZER = make_tokenizer(["<think> Where was Mara born? </think> <search> Mara </search>"], ["<think>"])
SHARED = TokenizerCodec(TOKENIZER, cache_size=3)


class Counting:
    """A tokenizer that counts what it is asked for."""

    def __init__(self):
        self.asked = []

    def encode(self, text, add_special_tokens=True):
        self.asked.append(text)
        return TOKENIZER.encode(text, add_special_tokens=add_special_tokens)


@given(st.text(max_size=20))
def test_ids_are_the_tokenizers_also_when_the_text_returns(text):
    expected = TOKENIZER.encode(text, add_special_tokens=False)
    assert SHARED.encode(text) == expected
    assert SHARED.encode(text) == expected


def test_a_text_that_returns_is_not_encoded_again():
    tokenizer = Counting()
    codec = TokenizerCodec(tokenizer)
    for text in ("Mara", "born", "Mara", "Mara"):
        codec.encode(text)
    assert tokenizer.asked == ["Mara", "born"]


def test_no_more_texts_are_cached_than_allowed():
    tokenizer = Counting()
    codec = TokenizerCodec(tokenizer, cache_size=2)
    for text in ("a", "b", "c", "a"):
        codec.encode(text)
    assert tokenizer.asked == ["a", "b", "c", "a"]


def test_decoding_leaves_out_special_tokens_wherever_they_stand():
    eos = TOKENIZER.eos_token_id
    ids = TOKENIZER.encode("Mara born", add_special_tokens=False)
    assert SHARED.decode([eos, *ids, eos]) == SHARED.decode(ids) == "Mara born"


def test_what_a_caller_does_to_its_ids_does_not_reach_the_next():
    codec = TokenizerCodec(TOKENIZER)
    codec.encode("Mara born").clear()
    assert codec.encode("Mara born") == TOKENIZER.encode("Mara born", add_special_tokens=False)
