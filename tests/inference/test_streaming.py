"""A streamed completion as the answer in one piece."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.inference.response_limits import MAX_ANSWER_BYTES, ResponseLimits
from rag_r1.inference.streaming import StreamAssembler

PIECES = [
    {"choices": [{"text": "<think> é", "token_ids": [1, 2], "logprobs": {"token_logprobs": [-1, -2]}}]},
    {"choices": [{"text": "", "token_ids": [3], "finish_reason": None, "logprobs": None}]},
    {
        "choices": [
            {"text": " </think>", "token_ids": [4], "finish_reason": "stop", "stop_reason": "</think>"}
        ]
    },
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 4}},
]
STREAM = b": hello\n\n" + b"".join(
    f"data: {json.dumps(piece, ensure_ascii=False)}\r\n\r\n".encode() for piece in PIECES
)
WHOLE = {
    "choices": [
        {
            "text": "<think> é </think>",
            "token_ids": [1, 2, 3, 4],
            "logprobs": {"token_logprobs": [-1, -2]},
            "finish_reason": "stop",
            "stop_reason": "</think>",
        }
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 4},
}


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_however_the_bytes_arrive_the_answer_is_the_same(cuts):
    pieces = []
    folded = StreamAssembler(pieces.append)
    edges = sorted({0, len(STREAM), *cuts})
    for start, end in zip(edges, edges[1:], strict=False):
        folded.feed(STREAM[start:end])
    folded.feed(b"data: [DONE]\n\ndata: not json")
    assert json.loads(folded.message()) == WHOLE
    assert pieces == ["<think> é", " </think>"]


@pytest.mark.parametrize("stream", [b"data: {\n", b'data: {"error": "x"}\n', b"data: 3\n", b"", STREAM])
def test_what_is_no_whole_stream_is_an_error(stream):
    with pytest.raises(ValueError):
        folded = StreamAssembler(lambda piece: None)
        folded.feed(stream)
        folded.message()


def test_a_reason_outlasts_later_nulls_and_the_last_line_needs_no_break():
    assembler = StreamAssembler(len)
    for reason in ("null", '"stop"', "null"):
        assembler.feed(b'data: {"choices": [{"text": "x", "finish_reason": %s}]}\n' % reason.encode())
    assembler.feed(b"data: [DONE]")
    assert json.loads(assembler.message())["choices"][0]["finish_reason"] == "stop"


def test_the_error_of_a_stream_is_quoted():
    with pytest.raises(ValueError, match="the stream has an error: out of memory"):
        StreamAssembler(len).feed(b'data: {"error": {"message": "out of memory"}}\n')


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_chunks_of_any_shape_never_raise_anything_else(value):
    for chunk in (
        {"choices": value},
        {"choices": [{"text": value, "token_ids": value, "logprobs": value}]},
        {"usage": value, "error": None},
    ):
        folded = StreamAssembler(lambda piece: None)
        folded.feed(f"data: {json.dumps(chunk)}\ndata: [DONE]\n".encode())
        assert json.loads(folded.message())["choices"]


def event(**choice) -> bytes:
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


ASKED = ResponseLimits.of({"max_tokens": 100}, prompt_tokens=50)
ENDLESS = {
    "text": event(text="word " * 30),
    "token ids": event(text="", token_ids=[1, 2, 3]),
    "empty events": b"data: {}\n\n",
    "comments": b": still here\n\n",
    "empty lines": b"\n" * 4096,
    "other fields": b"event: x\nid: 1\nretry: 3\n",
    "a line without an end": b"data: " + b"x" * 4096,
    "a comment without an end": b":" * 4096,
    "choices": event(text="a", index=0, many=["b"] * 1000),
    "short comments": b":\n" * 100,
    "ends of events": b"\n" * 100,
    "calls of tools": event(delta={"tool_calls": [{"function": {"arguments": "{" * 100}}]}),
    "reasoning": event(reasoning_content="hm " * 50),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_stream_without_an_end_is_ended_and_little_of_it_is_kept(name):
    pieces: list[str] = []
    folded = StreamAssembler(pieces.append, ASKED)
    fed = 0
    with pytest.raises(ValueError, match="it has"):
        while fed < MAX_ANSWER_BYTES:
            folded.feed(ENDLESS[name])
            fed += len(ENDLESS[name])
    assert fed < 2 << 20 and len("".join(pieces)) <= ASKED.characters + 1000


def test_lists_in_place_of_numbers_are_not_held():
    folded = StreamAssembler(lambda piece: None)
    folded.feed(event(text="a", token_ids=[1, []], logprobs={"token_logprobs": [0.5, [[]]]}))
    folded.feed(b"data: [DONE]\n")
    [choice] = json.loads(folded.message())["choices"]
    assert choice["token_ids"] == [1, None] and choice["logprobs"]["token_logprobs"] == [0.5, None]


def test_numbers_for_which_no_limit_was_asked_are_limited_too():
    folded = StreamAssembler(lambda piece: None)
    with pytest.raises(ValueError, match="more than 1,500,000 values"):
        for _ in range(10):
            folded.feed(event(token_ids=[1] * 250_000))


def test_a_long_line_is_an_error_also_if_it_comes_in_one_piece_with_its_end():
    with pytest.raises(ValueError, match="a line of more than"):
        StreamAssembler(lambda piece: None).feed(b"data: " + b"x" * (2 << 20) + b"\n")


def test_an_answer_as_long_as_it_may_be_is_within_its_limits():
    """A chunk of vLLM for each token, with log-probs, long tokens and a long name of the model, and the ids
    of a long prompt."""
    limits = ResponseLimits.of({"max_tokens": 4096, "logprobs": 0}, prompt_tokens=100_000)
    pieces: list[str] = []
    folded = StreamAssembler(pieces.append, limits)
    head = {"id": "cmpl-" + "0" * 32, "object": "text_completion", "created": 1, "model": "m" * 98}
    for number in range(4096):
        logprobs = {"text_offset": [number], "token_logprobs": [-0.1234567], "tokens": ["token_id:151643"]}
        piece = {
            "index": 0,
            "text": " " * 60,
            "logprobs": logprobs,
            "token_ids": [151643],
            "finish_reason": None,
        }
        if number == 0:
            piece["prompt_token_ids"] = [151643] * 100_000
        folded.feed(f"data: {json.dumps({**head, 'choices': [piece], 'usage': None})}\n\n".encode())
    folded.feed(b"data: [DONE]\n\n")
    [choice] = json.loads(folded.message())["choices"]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == 4096
    assert choice["text"] == "".join(pieces)


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"max_tokens": 10}, 10),
        ({"max_completion_tokens": 20, "max_tokens": 10}, 20),
        ({"max_tokens": None, "max_completion_tokens": -1}, None),
        ({"max_tokens": True}, None),
        ({}, None),
    ],
)
def test_the_limits_follow_the_request_as_it_is_sent(body, tokens):
    limits = ResponseLimits.of(body, 0)
    assert limits.tokens == tokens
    assert limits.bytes <= MAX_ANSWER_BYTES and (tokens is None) == (limits.bytes == MAX_ANSWER_BYTES)
