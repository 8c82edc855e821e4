"""What becomes of training rows: texts with prefixes, what is known to answer a query, and refused rows."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.retriever.records import TrainingRow
from rag_r1.retriever.training.dataset import load_training_data, training_data
from rag_r1.retriever.training.encoder_settings import EncoderSettings
from rag_r1.retriever.training.loss import NO_PASSAGE
from rag_r1.runs.errors import RunError
from tests.retriever.small_training import ENCODER, PASSAGES, files, row


def settings(**changed) -> EncoderSettings:
    prefixes = {"query_prefix": "query: ", "passage_prefix": "passage: "}
    return EncoderSettings(**{**ENCODER, **prefixes, "max_length": 64, **changed})


def loaded(folder, rows, *, negatives=2, ranked=False, **changed):
    given_rows, corpus = files(folder, rows)
    more = {"negatives": negatives, "ranked": ranked, "progress": False}
    return load_training_data([given_rows], [corpus], settings(**changed), **more)


def test_texts_are_those_of_a_search_with_the_encoders_prefixes(tmp_path):
    data = loaded(tmp_path, [row(0), row(3)])
    assert data.queries == [
        "query: what The red cat runs. [SEP] cat",
        "query: what The red hen sees. [SEP] hen",
    ]
    assert [data.texts[number] for number in data.passages[0]] == [
        f"passage: {PASSAGES[name]}" for name in ("p0", "p1", "p5")
    ]
    assert data.table.passages.tolist() == data.passages
    assert data.table.relevance[0].tolist() == pytest.approx([0.9, 0.4, 0.1])


@pytest.mark.parametrize(
    ("mode", "query"),
    [
        ("plain", "cat"),
        ("history", "what The red cat runs. [SEP] earlier [SEP] cat"),
        ("reasoning", "I need the animal. [SEP] cat"),
    ],
)
def test_the_mode_says_what_stands_in_a_query(tmp_path, mode, query):
    given_row = row(0, history_queries=["earlier"], reasoning="I need the animal.")
    assert loaded(tmp_path, [given_row], mode=mode).queries == [f"query: {query}"]


def test_a_long_question_is_shortened_and_the_query_is_whole(tmp_path):
    long = row(0, question="word " * 50, query_text="the whole query")
    (query,) = loaded(tmp_path, [long], query_prefix="").queries
    assert query.endswith("[SEP] the whole query") and len(query) <= 60


def test_the_positives_of_rows_about_one_query_are_known_to_both(tmp_path):
    second = row(0, passage_ids=["p7", "p1", "p5"])
    other = row(0, question="another", passage_ids=["p9", "p1", "p5"])
    data = loaded(tmp_path, [row(0), second, other])
    number = {data.texts[i].removeprefix("passage: "): i for i in range(len(data.texts))}
    known = [number[PASSAGES["p0"]], number[PASSAGES["p7"]]]
    known_numbers = data.table.all_positives(torch.arange(3)).tolist()
    assert known_numbers == [known, known, [number[PASSAGES["p9"]], NO_PASSAGE]]
    assert len(data.table.positives) == 3, "a query and a positive of it are held once"


def test_of_more_negatives_the_first_are_used_and_fewer_are_an_error(tmp_path):
    assert [len(first) for first in loaded(tmp_path, [row(0)], negatives=1).passages] == [2]
    three = row(0, passage_ids=["p0", "p1", "p2", "p3"], scores=[{"em": 0.0, "local_utility": 0.0}] * 4)
    words = r"rows.jsonl, row 2 .*q1, round 1\) has 2 negatives, not 3.*--negatives 2"
    with pytest.raises(RunError, match=words):
        loaded(tmp_path, [three, row(1)], negatives=3)


def test_the_order_by_relevance_cannot_be_learned_from_rows_without_relevance(tmp_path):
    flat = row(1, scores=[{"em": 1.0, "local_utility": 0.0}, *[{"em": 0.0, "local_utility": 0.0}] * 2])
    words = r"rows.jsonl, row 2 .*q1, round 1\) has one LR .*leave --rank-weight out"
    with pytest.raises(RunError, match=words):
        loaded(tmp_path, [row(0), flat], ranked=True)
    assert len(loaded(tmp_path, [row(0), flat]).queries) == 2
    # A difference among passages that are not used is none.
    late = row(1, scores=[*[{"em": 0.0, "local_utility": 0.5}] * 2, {"em": 0.0, "local_utility": 0.1}])
    with pytest.raises(RunError, match="row 1 .*has one LR"):
        loaded(tmp_path, [late], negatives=1, ranked=True)


@pytest.mark.parametrize(
    ("rows", "mode", "words"),
    [
        ([], "agentic", "no training rows in .*rag-r1 retriever data"),
        ([row(0), row(1, query_text=None)], "agentic", "line 2 is not a line of train.jsonl.*query_text"),
        (
            [row(0), row(1, passage_ids=["p1", "nowhere", "lost"])],
            "agentic",
            "2 of 5 passages are not in the corpus, such as 'nowhere', 'lost'",
        ),
        ([row(0, reasoning="A thought."), row(1)], "reasoning", "row 2 .* has no `reasoning`"),
        ([row(0, reasoning=""), row(1, reasoning=" ")], "reasoning", "no row of .*rows.jsonl has a thought"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(tmp_path, rows, mode, words):
    with pytest.raises(RunError, match=words):
        loaded(tmp_path, rows, mode=mode)


def test_where_the_policy_wrote_no_thought_the_query_stands_alone_as_in_a_search(tmp_path):
    rows = [row(0, reasoning="I need the animal."), row(3, reasoning="")]
    queries = loaded(tmp_path, rows, mode="reasoning").queries
    assert queries == ["query: I need the animal. [SEP] cat", "query: hen"]


@given(st.lists(st.tuples(st.integers(0, 3), st.permutations(sorted(PASSAGES)[:6])), min_size=1, max_size=8))
def test_whatever_the_rows_a_positive_of_a_query_is_known_in_all_its_rows(drawn):
    given_rows = [
        row(0, question=f"question {question}", passage_ids=list(ids[:3])) for question, ids in drawn
    ]
    rows = [TrainingRow.model_validate_json(json.dumps(first)) for first in given_rows]
    data = training_data(rows, PASSAGES, settings(), 2)
    ids = {data.texts[i].removeprefix("passage: "): i for i in range(len(data.texts))}
    for i, (question, _) in enumerate(drawn):
        expected = {ids[PASSAGES[other[0]]] for also, other in drawn if also == question}
        assert set(data.table.all_positives(torch.tensor([i]))[0].tolist()) == expected
    assert len(data.table.positives) == len({(question, ids[0]) for question, ids in drawn})


def test_the_fingerprint_changes_with_rows_and_texts(tmp_path):
    first, other = (loaded(tmp_path, [row(n)]).fingerprint for n in (0, 1))
    assert first != other != loaded(tmp_path, [row(1)], passage_prefix="").fingerprint
    assert first == loaded(tmp_path, [row(0)]).fingerprint


def test_the_fingerprint_is_that_of_earlier_releases(tmp_path):
    """Trainings that they have begun go on, also those that use some of a row's negatives."""
    fingerprint = loaded(tmp_path, [row(0), row(1)], negatives=1).fingerprint
    assert fingerprint == "8f004ab2cea592b6747a91efd8b7a3ed88c877f5c0e0d410ec4c10e0ff29e8c6"
