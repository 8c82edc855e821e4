"""The files of the steps: what is read, what is refused with its place, and that nothing is lost."""

from __future__ import annotations

import json

import pytest

from rag_r1.retriever.records import (
    CorrectnessRecord,
    PassageRecord,
    RelevanceRecord,
    TrainingRow,
    read_records,
    write_records,
)
from rag_r1.runs.errors import RunError
from tests.retriever.small_training import write_lines

#: A row with the keys and the kinds of values of the published training data; its texts are made up.
PUBLISHED = {
    "dataset": "hotpotqa",
    "query_id": "train_17",
    "question": "Who directed the film that won?",
    "round_index": 2,
    "history_queries": ["film that won"],
    "query_text": "director of the film",
    "passage_ids": [str(number) for number in range(16)],
    "scores": [{"em": 1.0, "local_utility": 0.95}, *[{"em": 0, "local_utility": 0}] * 15],
}


def changed(**values: object) -> dict[str, object]:
    return {**PUBLISHED, **values}


def test_published_training_rows_are_read_and_written_as_they_are(tmp_path):
    path = write_lines(tmp_path / "rows.jsonl", PUBLISHED, changed(round_index=3))
    rows = list(read_records(TrainingRow, path))
    assert [row.round_index for row in rows] == [2, 3] and rows[0].passage_ids[0] == "0"
    assert write_records(tmp_path / "again.jsonl", rows) == 2
    assert json.loads((tmp_path / "again.jsonl").read_text().splitlines()[0]) == PUBLISHED
    assert list(read_records(TrainingRow, tmp_path / "again.jsonl")) == rows


def test_a_byte_order_mark_at_the_beginning_of_a_file_is_skipped(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(PUBLISHED), encoding="utf-8-sig")
    (row,) = read_records(TrainingRow, tmp_path / "rows.jsonl")
    assert row.query_id == "train_17"


def test_rows_of_a_published_ablation_without_a_question_are_read(tmp_path):
    path = write_lines(tmp_path / "rows.jsonl", changed(question="", history_queries=[]))
    (row,) = read_records(TrainingRow, path)
    assert row.question == ""


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (changed(scores=PUBLISHED["scores"][:15]), "16 passage_ids but 15 scores"),
        (changed(passage_ids=["0"] * 16), "a passage is named twice"),
        (changed(passage_ids=[1.5] * 16), "passage_ids.0: Input should be a valid string"),
        (changed(passage_ids=["0"], scores=[{"em": 1, "local_utility": 1}]), "passage_ids"),
        (changed(round_index=0), "round_index"),
        (changed(query_text=None), "query_text"),
        (changed(scores=[{"em": 2, "local_utility": 0}] * 16), "scores.0"),
        ({"dataset": "hotpotqa"}, "query_id"),
        ([], "should be an object"),
    ],
)
def test_a_row_that_is_none_is_refused_with_file_line_and_key(tmp_path, row, message):
    path = write_lines(tmp_path / "rows.jsonl", PUBLISHED, row)
    with pytest.raises(RunError, match="rows.jsonl, line 2 is not a line of train.jsonl") as raised:
        list(read_records(TrainingRow, path))
    assert message in str(raised.value)


def test_a_line_that_is_no_json_or_too_long_and_a_file_that_is_not_there_are_told(tmp_path):
    (tmp_path / "rows.jsonl").write_text("{")
    with pytest.raises(RunError, match="line 1"):
        list(read_records(TrainingRow, tmp_path / "rows.jsonl"))
    with pytest.raises(RunError, match="none.jsonl cannot be read"):
        list(read_records(TrainingRow, tmp_path / "none.jsonl"))
    (tmp_path / "long.jsonl").write_bytes(b" " * ((64 << 20) + 1))
    with pytest.raises(RunError, match="long.jsonl cannot be read .line 1 has more than"):
        list(read_records(TrainingRow, tmp_path / "long.jsonl"))


def test_a_file_in_utf_16_is_refused_with_the_command_that_converts_it(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(PUBLISHED), encoding="utf-16")
    with pytest.raises(RunError, match="rows.jsonl is not UTF-8 but UTF-16.*iconv"):
        list(read_records(TrainingRow, tmp_path / "rows.jsonl"))


def test_published_scores_are_read(tmp_path):
    local = {"id": "q1", "round_index": 1, "docid_score": {"17": 85, "4": 0}}
    final = {
        "id": "q1",
        "question": "Who?",
        "round_index": 1,
        "history_queries": [],
        "current_query": "who",
        "docid_score": {"17": {"metric_score": {"em": 1.0, "f1": 1.0}, "retrieved_times": 2}},
    }
    (relevance,) = read_records(RelevanceRecord, write_lines(tmp_path / "l.jsonl", local))
    (correctness,) = read_records(CorrectnessRecord, write_lines(tmp_path / "g.jsonl", final))
    assert relevance.docid_score == {"17": 85, "4": 0}
    assert correctness.docid_score["17"].metric_score.em == 1


@pytest.mark.parametrize("score", [101, -1, 8.5, "85", True, None])
def test_a_relevance_that_is_no_whole_number_from_0_to_100_is_refused(tmp_path, score):
    line = {"id": "q1", "round_index": 1, "docid_score": {"17": score}}
    with pytest.raises(RunError, match="line 1 is not a line of relevance.jsonl"):
        list(read_records(RelevanceRecord, write_lines(tmp_path / "l.jsonl", line)))


def test_passages_are_read_by_id_also_if_ids_are_whole_numbers(tmp_path):
    path = write_lines(tmp_path / "p.jsonl", {"id": 7, "contents": "a"}, {"id": "b", "contents": "c"})
    assert [(record.id, record.contents) for record in read_records(PassageRecord, path)] == [
        ("7", "a"),
        ("b", "c"),
    ]


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_records(path, [TrainingRow.model_validate_json(json.dumps(PUBLISHED))])
    contents = path.read_bytes()

    def broken():
        yield TrainingRow.model_validate_json(json.dumps(PUBLISHED))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_records(path, broken())
    assert path.read_bytes() == contents
