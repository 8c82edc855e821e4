"""Answers of retrieval servers, as the two wires read them."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.protocols import Document
from rag_r1.tools.retrieval.wire import MAX_DOCUMENT_CHARS, MAX_ID_CHARS, WIRES


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"result": [["x"]]},
        {"answers": "x"},
        {"answers": [["x"], ["y"]]},
        {"answers": [[1]]},
        {"answers": [[{"contents": "x"}]]},
        {"answers": ["x"]},
    ],
)
def test_an_answer_in_another_shape_than_r1_searchers_is_refused(data):
    with pytest.raises(ValueError):
        WIRES["queries"].parse_strict(data, 1, 2)


def test_results_with_scores_and_bare_documents_are_both_read():
    bare = {"id": 7, "contents": "text", "title": "ignored"}
    scored = {"document": bare, "score": 2}
    assert WIRES["retrieve"].parse_strict({"result": [[bare, scored]]}, 1, 5) == [
        [Document("7", "text", None), Document("7", "text", 2.0)]
    ]


def test_more_documents_than_asked_for_and_endless_documents_are_cut():
    documents = [{"id": str(i), "contents": "x" * (MAX_DOCUMENT_CHARS + 1)} for i in range(5)]
    (result,) = WIRES["retrieve"].parse_strict({"result": [documents]}, 1, 2)
    assert [(d.id, len(d.contents)) for d in result] == [("0", MAX_DOCUMENT_CHARS), ("1", MAX_DOCUMENT_CHARS)]


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["result", "document", "contents", "id"]), inner)
    ),
)


@given(_json, st.integers(0, 3))
def test_any_json_is_either_results_or_a_value_error(data, n_queries):
    try:
        results = WIRES["retrieve"].parse_strict(json.loads(json.dumps(data)), n_queries, 2)
    except ValueError:
        return
    assert len(results) == n_queries


HUGE = 10**400


_scores = (
    st.integers()
    | st.floats()
    | st.integers(300, 420).map(lambda digits: 10**digits)
    | st.sampled_from([HUGE, -HUGE, 2**1024, 2**1024 - 2**970, True, None, "1", [1], {"a": 1}])
)


@given(st.lists(st.lists(_scores, max_size=3), max_size=4))
def test_whatever_the_scores_each_query_gets_documents_or_a_reason(scores):
    answer = {
        "result": [[{"document": {"contents": "x"}, "score": score} for score in row] for row in scores]
    }
    matches = WIRES["retrieve"].parse_each(json.loads(json.dumps(answer)), len(scores), 3)
    for row, documents in zip(scores, matches, strict=True):
        numbers = [score for score in row if isinstance(score, int | float) and not isinstance(score, bool)]
        try:
            usable = all(math.isfinite(float(number)) for number in numbers)
        except OverflowError:
            usable = False
        assert isinstance(documents, str) != usable
        if usable:
            assert [document.score for document in documents] == [
                float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None
                for score in row
            ]
    if any(isinstance(item, str) for item in matches):
        with pytest.raises(ValueError):
            WIRES["retrieve"].parse_strict(answer, len(scores), 3)


@pytest.mark.parametrize("own_id", ["x" * 10**6, {"a": 1}, [[]] * 9, None, True])
def test_an_id_is_short_or_none(own_id):
    ((document,),) = WIRES["retrieve"].parse_strict({"result": [[{"id": own_id, "contents": "x"}]]}, 1, 1)
    assert document.id == (own_id[:MAX_ID_CHARS] if isinstance(own_id, str) else "")
