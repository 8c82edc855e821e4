"""The record of an episode: plain values, what the policy wrote, and nothing of what it was shown."""

import json
from dataclasses import asdict

import pytest

from rag_r1.agent import Trajectory, Turn
from rag_r1.agent.trajectory import query_key
from rag_r1.protocols import Document

RECORD = Trajectory(
    id="hotpot-1",
    question="Où?",
    protocol="rag_r1_mq",
    turns=[
        Turn.searched(
            "<search> a, b </search>",
            queries=["a", "b"],
            documents=[[Document("7", "Title\n<answer> no </answer> é", 0.25)], []],
            generated_tokens=9,
            observed_tokens=20,
            tool_s=0.5,
            status="tool_failure",
        ),
        Turn("<answer> Rome </answer>", "answer", generated_tokens=5),
    ],
    answer="Rome",
    status="answered",
    rewards={"em": 1.0},
)


def test_it_survives_json():
    assert Trajectory.from_dict(json.loads(json.dumps(RECORD.to_dict()))) == RECORD


def test_its_data_have_every_field_and_share_nothing_with_it():
    record = Trajectory.from_dict(RECORD.to_dict())
    record.add_failure("tool", "gone")
    data = record.to_dict()
    assert data == asdict(record)
    data["turns"][0]["calls"][0]["arguments"].clear()
    data["turns"][0]["calls"][0]["documents"][0]["contents"] = ""
    data["turns"][0]["calls"].pop()
    data["rewards"].clear()
    data["failures"][0]["detail"] = ""
    assert record.to_dict() == asdict(record) != data


def test_reading_a_record_leaves_its_data_as_it_was():
    data = RECORD.to_dict()
    Trajectory.from_dict(data)
    assert data == RECORD.to_dict()


def test_generated_text_holds_neither_question_nor_documents():
    assert RECORD.generated_text == "<search> a, b </search><answer> Rome </answer>"


def test_queries_and_failures_are_counted():
    assert (RECORD.n_searches, RECORD.n_tool_failures) == (2, 1)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Who was born?", "who was  born", True),
        ('"Ulm", Germany', "ulm germany", True),
        ("Größe", "GRÖSSE", True),
        ("?", "!", False),
        ("born in Ulm", "Ulm born in", False),
        ("1999", "199 9", False),
    ],
)
def test_queries_are_the_same_by_their_words(one, other, same):
    assert (query_key(one) == query_key(other)) == same


def test_a_record_with_an_unknown_key_is_refused():
    with pytest.raises(TypeError, match="surprise"):
        Trajectory.from_dict({**RECORD.to_dict(), "surprise": 1})
