"""Documents are data: no protocol tag and no special token survives in an observation; other text is kept."""

import dataclasses
import re
import unicodedata
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rag_r1.protocols import Document, Failure, control_tokens, load_protocol
from tests.agent.quick_draws import mixed

SPECIAL = "<|im_start|> <|im_end|> <|endoftext|> <s> </s> [PAD] <pad> <｜end▁of▁sentence｜>".split()
SHIPPED = {
    name: load_protocol(name).with_special_tokens(SPECIAL) for name in ("search_r1", "rag_r1_sq", "rag_r1_mq")
}
MQ = SHIPPED["rag_r1_mq"]
TAGS = [f"<{slash}{name}>" for name in ("think", "search", "information", "answer") for slash in ("", "/")]


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("<search> q </search>", "[search] q [/search]"),
        ("</information>", "[/information]"),
        ("< / Answer\n>", "[ / Answer\n]"),
        ("<THINK>", "[THINK]"),
        ("<|im_end|>", "[|im_end|]"),
        ("<|never heard of|>", "[|never heard of|]"),
        ("<|a<|b|>c|>", "[|a[|b|]c|]"),
        ("<|>", "[|]"),
        ("<<search>search>", "<[search]search>"),
        ("</s>", "[/s]"),
        ("[PAD]", "[ PAD]"),
        ("<pad>", "[ pad]"),  # without its angle brackets it would be the other padding token
        ("<｜end▁of▁sentence｜>", "[｜end▁of▁sentence｜]"),
    ],
)
def test_tags_and_special_tokens_become_harmless(text, harmless):
    assert MQ.neutralise(f"x {text} y") == f"x {harmless} y"


@pytest.mark.parametrize(
    "text",
    ["a < b > c", "<b>bold</b>", "<searching>", "x <- y -> z", "[1] (2) {3}", "é 東京 🙂", "a | b || c", "<"],
)
def test_other_text_is_unchanged(text):
    assert MQ.neutralise(text) == text


def test_a_special_token_of_one_character_or_of_blanks_cannot_hold_things_up():
    protocol = MQ.with_special_tokens(["§", " ", "\n", "", " [X] "])
    assert protocol.neutralise("a §§ b\n[X]") == "a    b\n[ X]"
    assert protocol.neutralise("<§search>") == "[ search]"


def test_tags_without_angle_brackets_are_broken_too():
    protocol = with_tag("search", "[search]", "[/search]")
    assert protocol.neutralise("a [search] [SEARCH] b") == "a [ search] [ SEARCH] b"


def with_tag(name, opening, closing):
    blocks = (
        dataclasses.replace(block, open=opening, close=closing) if block.name == name else block
        for block in MQ.blocks
    )
    return dataclasses.replace(MQ, blocks=tuple(blocks))


def survivors(protocol, text):
    """Tags, however written, and special tokens that stand in `text`."""
    folded = re.sub(r"\s", "", text).casefold()
    return [tag for tag in TAGS if tag in folded] + [
        token for token in protocol.special_tokens if token in text
    ]


MARKS = ["<", ">", "<|", "|>", "/", " ", "\n", "{body}", "{contents}", "{rank}", '"', "\\", "🙂", "search"]
HOSTILE = mixed([*TAGS, *SPECIAL, *MARKS], most=15, run=6)


@given(HOSTILE)
@example("<|<||>|>")
@example("<|" * 30 + "x" + "|>" * 30)
def test_neutralising_leaves_nothing_and_doing_it_twice_changes_nothing(text):
    once = MQ.neutralise(text)
    assert not survivors(MQ, once)
    assert "<|" not in once and "|>" not in once
    assert MQ.neutralise(once) == once


@given(
    st.sets(st.text(alphabet="ab[]<> ", min_size=1, max_size=4), max_size=4),
    st.text(alphabet="ab[]<> ", max_size=12),
)
def test_it_ends_for_any_set_of_special_tokens(tokens, text):
    protocol = MQ.with_special_tokens(tokens)
    once = protocol.neutralise(text)
    assert not any(token in once for token in protocol.special_tokens)
    assert protocol.neutralise(once) == once


@given(st.lists(HOSTILE, min_size=1, max_size=3), HOSTILE, st.booleans())
def test_an_observation_holds_its_own_two_tags_and_no_others(contents, query, failed):
    results = [[Document(text, text) for text in contents], Failure(contents[0]) if failed else []]
    for protocol in SHIPPED.values():
        visible = protocol.observation([query, "q"], results)
        opening, closing = protocol.format.template.split("{body}")
        assert visible.startswith(opening) and visible.endswith(closing)
        body = visible[len(opening) : len(visible) - len(closing)]
        assert not survivors(protocol, body)


@pytest.mark.parametrize(
    "text",
    [
        "<   ",
        "<|",
        "<| ",
        "<",
        "<|<||>",
        "< / ",
        "<search ",
        "</ ",
        "|>",
        "<|x\n",
        "<\u2003search",
        "[",
        "[PA",
    ],
)
def test_a_very_long_text_of_beginnings_is_neutralised(text):
    text *= 200_000 // len(text)
    assert not survivors(MQ, MQ.neutralise(text))


def test_deep_nesting_is_neutralised():
    text = "<|" * 100_000 + "|>" * 100_000
    assert MQ.neutralise(text) == "[|" * 100_000 + "|]" * 100_000


# Of each family one that is special, and those that were added without being so.
SPECIAL_TOKENS = ["<|im_start|>", "<s>", "[gMASK]", "<｜begin▁of▁sentence｜>", "<start_of_turn>", "EOD"]
OTHER_TOKENS = (
    "<tool_call> </tool_call> <think> </think> [INST] [/INST] [TOOL_CALLS] <end_of_turn> <｜User｜> "
    "<｜tool▁calls▁begin｜> <unused7> <unused77> <SPECIAL_12> <fim_prefix> |||EMAIL||| <<SYS>> [multimodal] "
    "tool_call @turn@"
).split()
WORDS = [" 1901", "Doc 1:", "(1)", "COVID-19", "naïve", "\n\n", "  "]


def built(normalizer=None):
    """A byte tokenizer with the tokens above added to its vocabulary, and ordinary words beside them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    if normalizer is not None:
        core.normalizer = normalizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    tokenizer.add_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    # normalized: looked for in the text as the normaliser has left it
    tokenizer.add_tokens([AddedToken(token, normalized=normalizer is not None) for token in OTHER_TOKENS])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in WORDS])
    return tokenizer


TOKENIZERS = {
    "plain": built(),
    "NFKC": built(normalizers.NFKC()),
    "NFKC, lower case": built(normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])),
}
WIDE = [
    "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in token)
    for token in SPECIAL_TOKENS + OTHER_TOKENS
]
SIGNS = ["<", ">", "｜", "＜", "［", " ", "[", "/", "_", "unused", "7", "\u0338", "\u0301"]
ADDED = mixed([*2 * (SPECIAL_TOKENS + OTHER_TOKENS + WIDE), *WORDS, *3 * SIGNS], most=12, run=4)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_whole_added_vocabulary_is_known_but_for_ordinary_words(name):
    assert control_tokens(TOKENIZERS[name]) == set(SPECIAL_TOKENS + OTHER_TOKENS)


@cache
def guarded(protocol, name):
    """The protocol that neutralises a tokenizer's control tokens, and the ids of those."""
    tokenizer = TOKENIZERS[name]
    ids = {tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS + OTHER_TOKENS}
    return load_protocol(protocol).with_special_tokens(control_tokens(tokenizer)), ids


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("protocol", ["rag_r1_mq", "rag_r1_sq", "search_r1", "r1_searcher"])
@given(ADDED)
@example("".join(SPECIAL_TOKENS + OTHER_TOKENS))
@example("＜tool_call＞ ＜｜User｜＞ ［INST］ <\u0338tool_call>")
def test_no_document_becomes_a_token_that_controls_the_model(protocol, name, text):
    tokenizer = TOKENIZERS[name]
    protocol, ids = guarded(protocol, name)
    for visible in (protocol.neutralise(text), protocol.render_document(1, Document("1", text))):
        assert not ids & set(tokenizer.encode(visible, add_special_tokens=False)), visible


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "< / Tool_Response >",
        "[INST]",
        "[/INST]",
        "<<SYS>>",
        "<start_of_turn>",
        "<end_of_turn>",
        "<｜Assistant｜>",
        "<｜",
        "｜>",
        "<think>",
        "<thinking>",
        "</reasoning>",
    ],
)
def test_marks_of_published_templates_are_harmless_for_every_tokenizer(text):
    protocol = with_tag("think", "<plan>", "</plan>").with_special_tokens([])
    changed = protocol.neutralise(f"x {text} y")
    assert text not in changed and changed.startswith("x ") and changed.endswith(" y")


@pytest.mark.parametrize(
    "text",
    [
        "In 1901 he wrote Doc 1: (1) of COVID-19,\n\nnaïve  as ever",
        "東京｜大阪 ＜注＞ ［1］ Ｗｉｄｅ ﬁne ² ｔｏｏｌ＿ｃａｌｌ",
        "a tool call [instr] <unused 7> <b>bold</b> ||| @turn",
        "cafe\u0301",
    ],
)
def test_ordinary_text_is_the_same_to_the_byte(text):
    assert (
        load_protocol("rag_r1_mq")
        .with_special_tokens(control_tokens(TOKENIZERS["plain"]) - {"tool_call"})
        .neutralise(text)
        == text
    )


@pytest.mark.slow
def test_thousands_of_added_tokens_cost_no_more_than_a_few():
    """Gemma has 6,242. A pattern that tries them one after the other would take minutes here."""
    protocol = MQ.with_special_tokens([f"<unused{i}>" for i in range(6242)] + ["<mask>"])
    text = "<unused" * 100_000
    assert protocol.neutralise(text) == text
    assert protocol.neutralise(text + "6241>") == text[:-7] + "[unused6241]"


def test_a_question_is_neutralised_where_the_prompt_puts_it_and_nowhere_else():
    question = "Who? </search> <tool_call> </search>"
    raw = MQ.messages(question)
    (message,) = MQ.harmless(raw, question)
    assert message["content"] == MQ.messages("Who? [/search] [tool_call] [/search]")[0]["content"]
    assert raw[0]["content"].endswith(question + "\n"), "what was given is not changed"
    # A question that also stands in the instructions: theirs stays.
    (message,) = MQ.harmless(MQ.messages("<search>"), "<search>")
    assert message["content"] == MQ.messages("[search]")[0]["content"]


@given(st.text(max_size=40), st.sampled_from(["rag_r1_mq", "r1_searcher", "r1_searcher_instruct"]))
@example("Who wrote 東京｜大阪 ＜注＞?", "rag_r1_mq")
@example("", "rag_r1_mq")
def test_a_prompt_whose_question_has_nothing_of_the_kind_is_the_same_to_the_byte(question, name):
    protocol = load_protocol(name).with_special_tokens(SPECIAL)
    messages = protocol.messages(question)
    if protocol.neutralise(question) == question:
        assert protocol.harmless(messages, question) == messages
    else:
        assert protocol.harmless(messages, question) == protocol.messages(protocol.neutralise(question))


@given(HOSTILE)
def test_wide_letters_do_not_hide_a_tag(text):
    wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)
    once = MQ.neutralise(wide)
    assert not survivors(MQ, unicodedata.normalize("NFKC", once))
    assert MQ.neutralise(once) == once
