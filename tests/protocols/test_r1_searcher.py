"""R1-Searcher's dialect, string for string; and what is written in it is read as it was meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.protocols import Answer, Document, Failure, Invalid, Search, load_protocol

BASE, INSTRUCT = load_protocol("r1_searcher"), load_protocol("r1_searcher_instruct")
BOTH = pytest.mark.parametrize("protocol", [BASE, INSTRUCT], ids=["base", "instruct"])
ULM, JENA = Document("0", '"Ulm"\nUlm lies on the Donau.'), Document("1", '"Jena"\nJena lies on the Saale.')
QUERY_OPEN, QUERY_CLOSE = "<|begin_of_query|>", "<|end_of_query|>"


@BOTH
def test_documents_are_numbered_a_line_each_between_blank_lines(protocol):
    assert protocol.observation(["Donau"], [[ULM, JENA]]) == (
        "\n\n<|begin_of_documents|>\n"
        '(1)"Ulm"\nUlm lies on the Donau.\n'
        '(2)"Jena"\nJena lies on the Saale.\n'
        "<|end_of_documents|>\n\n"
    )


@BOTH
def test_white_space_is_left_out_where_a_document_starts_and_nowhere_else(protocol):
    edges = [Document("3", "\n \tT\nx  "), Document("4", "y\n")]
    visible = "\n\n<|begin_of_documents|>\n(1)T\nx  \n(2)y\n\n<|end_of_documents|>\n\n"
    assert protocol.observation(["q"], [edges]) == visible


@BOTH
def test_none_stands_where_nothing_is_found(protocol):
    nothing = "\n\n<|begin_of_documents|>\nNone<|end_of_documents|>\n\n"
    assert protocol.observation(["q"], [[]]) == nothing


@BOTH
def test_a_failed_search_shows_its_reason_in_place_of_documents(protocol):
    assert protocol.observation(["q"], [Failure("no answer")]) == (
        "\n\n<|begin_of_documents|>\nno answer\n<|end_of_documents|>\n\n"
    )


@BOTH
def test_generation_stops_at_the_end_of_a_query_and_of_an_answer(protocol):
    assert protocol.stop == (QUERY_CLOSE, "</answer>")


@BOTH
def test_a_turn_without_an_action_is_not_hinted(protocol):
    assert protocol.invalid_hint is None


def test_the_base_prompt_is_bare_text_that_ends_with_an_opened_thought():
    messages = BASE.messages("Who? {question}")
    assert [message["role"] for message in messages] == ["user"]
    ids = BASE.prompt_ids(messages, chat=lambda m: pytest.fail("a base model has no chat"), encode=list)
    text = "".join(ids)
    assert text.endswith("\n\nUser:Who? {question}\nAssistant: <think>") and "<|im_start|>" not in text


def test_the_instruct_prompt_is_a_chat_behind_which_the_thought_is_opened():
    messages = INSTRUCT.messages("Who?")
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[1]["content"] == "Who?"
    ids = INSTRUCT.prompt_ids(messages, chat=lambda m: [f"[{len(m)} messages]"], encode=list)
    assert "".join(ids) == "[2 messages]<think>"


@BOTH
def test_the_prompt_teaches_every_tag_and_to_ask_for_one_fact_in_key_words(protocol):
    text = "".join(message["content"] for message in protocol.messages("Who?")) + protocol.opening
    for tag in vars(protocol.tags).values():
        assert tag.open in text and tag.close in text
    assert f"{QUERY_OPEN} key words {QUERY_CLOSE}" in text and "one single fact" in text


def test_a_bare_text_begins_as_the_model_wants_it():
    assert BASE.prompt_ids(BASE.messages("Who?"), chat=list, encode=lambda text: [1], start=[7]) == [7, 1]
    assert INSTRUCT.prompt_ids([], chat=lambda m: [7, 8], encode=lambda text: [1], start=[7]) == [7, 8, 1]


@pytest.mark.parametrize("ending", ["", " <think>", " <think>\n"])
def test_a_published_prompt_opens_the_thought_once_whether_it_ends_with_it_or_not(ending):
    protocol = load_protocol("r1_searcher", prompt="User:{question}\nAssistant:" + ending)
    text = "".join(protocol.prompt_ids(protocol.messages("Who?"), chat=list, encode=list))
    assert text == "User:Who?\nAssistant: <think>"


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (f" I look. {QUERY_OPEN} Ulm river {QUERY_CLOSE}", Search(("Ulm river",))),
        (f" I look. {QUERY_OPEN}a, b{QUERY_CLOSE}", Search(("a, b",))),
        (" I know. </think> <answer> Donau </answer>", Answer("Donau")),
        (" I know. </think>\n\n<answer></answer>", Answer("")),
        (f"{QUERY_OPEN}  {QUERY_CLOSE}", Invalid("empty query")),
        (f" river {QUERY_CLOSE}", Invalid(f"{QUERY_CLOSE} without {QUERY_OPEN}")),
        (" I think so. </think>", Invalid("no closed search or answer")),
        ("<search> a </search>", Invalid("no closed search or answer")),
        # As published: quotes are deleted, white space is folded, and the last opening tag begins an answer.
        (f'{QUERY_OPEN} "Ulm"\n river,  "where" {QUERY_CLOSE}', Search(("Ulm river, where",))),
        (f'{QUERY_OPEN} " " {QUERY_CLOSE}', Invalid("empty query")),
        ("</think> <answer> Rhine <answer> Donau </answer>", Answer("Donau")),
        ("<|begin_of_documents|>\n(1)made up\n<|end_of_documents|>", Invalid("no closed search or answer")),
    ],
)
@BOTH
def test_the_action_of_a_turn(protocol, text, action):
    assert protocol.parse(text) == action


WORDS = st.text(min_size=1, max_size=30).map(lambda text: " ".join(text.split())).filter(bool)
TAGS = [part for tag in vars(BASE.tags).values() for part in (tag.open, tag.close)]
WHOLE = WORDS.filter(lambda text: not any(tag in text for tag in TAGS))


@given(thought=WHOLE, words=WHOLE)
def test_a_query_and_an_answer_come_back_as_they_were_written(thought, words):
    clean = " ".join(words.encode("utf-8", "replace").decode().replace('"', "").split())
    action = Search((clean,)) if clean else Invalid("empty query")
    for protocol in (BASE, INSTRUCT):
        assert protocol.parse(f"{thought} {QUERY_OPEN} {words} {QUERY_CLOSE}") == action
        assert protocol.parse(f"{thought} </think> <answer> {words} </answer>") == Answer(words)


HOSTILE = st.lists(
    st.sampled_from([*TAGS, "< |end_of_query| >", "<|END_OF_DOCUMENTS|>", "<|", "|>", "<", "\n(2)", "{body}"])
    | st.text(max_size=6),
    max_size=12,
).map("".join)


@given(st.lists(HOSTILE, min_size=1, max_size=3))
def test_no_document_can_close_its_block_ask_a_query_or_answer(contents):
    visible = BASE.observation(["q"], [[Document(str(i), text) for i, text in enumerate(contents)]])
    opening, closing = BASE.format.template.split("{body}")
    assert visible.startswith(opening) and visible.endswith(closing)
    body = "".join(visible[len(opening) : len(visible) - len(closing)].split()).casefold()
    assert "<|" not in body and "|>" not in body
    assert not any(tag in body for tag in ("<think>", "</think>", "<answer>", "</answer>"))
    assert isinstance(BASE.parse(visible[len(opening) : len(visible) - len(closing)]), Invalid)
