"""A streamed completion as the answer in one piece."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.evaluation.streamed import Folded

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
    seen = []
    folded = Folded(seen.append)
    edges = sorted({0, len(STREAM), *cuts})
    for start, end in zip(edges, edges[1:], strict=False):
        folded.feed(STREAM[start:end])
    folded.feed(b"data: [DONE]\n\ndata: not json")
    assert json.loads(folded.whole()) == WHOLE
    assert seen == ["<think> é", "<think> é </think>"]


@pytest.mark.parametrize("stream", [b"data: {\n", b'data: {"error": "x"}\n', b"data: 3\n", b"", STREAM])
def test_what_is_no_whole_stream_is_an_error(stream):
    with pytest.raises(ValueError):
        folded = Folded(lambda text: None)
        folded.feed(stream)
        folded.whole()


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_chunks_of_any_shape_never_raise_anything_else(value):
    for chunk in (
        {"choices": value},
        {"choices": [{"text": value, "token_ids": value, "logprobs": value}]},
        {"usage": value},
    ):
        folded = Folded(lambda text: None)
        folded.feed(f"data: {json.dumps(chunk)}\ndata: [DONE]\n".encode())
        assert json.loads(folded.whole())["choices"]
