"""Questions and their evidence, from veRL's parquet and from the files of data sets."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rag_r1.corpus.evidence import evidence_of, paragraphs_of
from rag_r1.corpus.questions import CorpusQuestion, read_questions
from rag_r1.corpus.repair.supply import write_supply
from rag_r1.data.rows import QuestionRow, write_rows
from rag_r1.io.errors import DataError
from tests.corpus.row_files import rows_of, written

QUESTION = {"question": "q", "answer": "a"}
DATA = Path(os.environ.get("RAG_R1_DATA") or Path(__file__).parents[3] / "shared" / "data")


def test_a_row_of_a_data_set_has_its_answers_and_its_evidence(tmp_path):
    row = {"id": 7, "question": "Where?", "answer": "Ulm", "supporting_ids": ["1", 2, "1"]}
    path = written(tmp_path / "hotpot.v1.jsonl", [{**row, "supporting_titles": ["Ulm"]}])
    [read] = read_questions([path]).questions
    assert read == CorpusQuestion("hotpot", "7", (("Where?", ("Ulm",)),), ("1", "2"), ("Ulm",))


def test_rows_of_verls_parquet_have_source_id_and_metadata(tmp_path):
    part = ("Where?", ("Ulm", "Ulm, Germany"))
    named = [{"supporting_titles": ["Ulm"]}, {"supporting_titles": None}]
    prompt = ({"role": "user", "content": "x"},)
    rows = [
        QuestionRow(*part, prompt, id=f"nq/{n}", data_source="nq", metadata=metadata)
        for n, metadata in enumerate(named, 1)
    ]
    write_rows(tmp_path / "test.parquet", rows)
    read = read_questions([tmp_path / "test.parquet"]).questions
    first, second = CorpusQuestion("nq", "nq/1", (part,), (), ("Ulm",)), CorpusQuestion("nq", "nq/2", (part,))
    assert read == [first, second]


def test_a_row_that_joins_questions_has_a_part_for_each_if_all_are_texts(tmp_path):
    metadata = {"parts": ["Where?", "When?"], "part_answers": [["Ulm"], ["1762", "the year 1762"]]}
    row = QuestionRow("Where? When?", ("Ulm; 1762",), id="n/1", data_source="n", metadata=metadata)
    write_rows(tmp_path / "n.parquet", [row])
    [read] = read_questions([tmp_path / "n.parquet"]).questions
    assert read.parts == (("Where?", ("Ulm",)), ("When?", ("1762", "the year 1762")))
    metadata["parts"][1] = None
    write_rows(tmp_path / "n.parquet", [row])
    assert len(read_questions([tmp_path / "n.parquet"]).questions[0].parts) == 1


@pytest.mark.parametrize(
    ("row", "ids", "titles"),
    [
        ({"supporting_facts": [["Ulm", 0], ["Ulm", 1], ["Danube", 0]]}, (), ("Ulm", "Danube")),
        ({"supporting_facts": {"title": ["Ulm"], "sent_id": [0]}}, (), ("Ulm",)),
        ({"supporting_facts": '[["Ulm", 0]]'}, (), ("Ulm",)),
        ({"paragraphs": [{"title": "Ulm", "is_supporting": True}, {"title": "x"}]}, (), ("Ulm",)),
        ({"paragraphs": [{"title": "x", "is_supporting": False}]}, (), ()),
        ({"metadata": {"s_wiki_title": "Heat (film)", "supporting_ids": [3]}}, ("3",), ("Heat (film)",)),
        ({"metadata": '{"s_wiki_title": "Heat"}'}, (), ("Heat",)),
        ({"supporting_ids": None, "supporting_titles": [], "metadata": None, "paragraphs": "text"}, (), ()),
    ],
)
def test_evidence_is_read_in_the_forms_of_the_data_sets(row, ids, titles):
    assert evidence_of(row) == (ids, titles)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"supporting_ids": 5}, "`supporting_ids` must be a list"),
        ({"supporting_titles": [["Ulm"]]}, "`supporting_titles`"),
        ({"supporting_facts": "x"}, "`supporting_facts` must be"),
        ({"supporting_facts": [[]]}, "`supporting_facts`"),
        ({"supporting_titles": ["\ud800"]}, "half of a character"),
    ],
)
def test_evidence_of_another_shape_makes_a_row_unusable(tmp_path, row, message):
    path = written(tmp_path / "x.jsonl", [QUESTION, {**QUESTION, **row}])
    read = read_questions([path])
    assert len(read.questions) == 1 and read.bad.count == 1
    assert read.bad.first[0].startswith(f"{path}, row 2: ") and message in read.bad.first[0]


def test_a_file_without_a_usable_question_is_named_with_its_own_rows_alone(tmp_path):
    first = written(tmp_path / "a.jsonl", [QUESTION, {}])
    second = written(tmp_path / "b.jsonl", [{}])
    with pytest.raises(DataError) as refused:
        read_questions([first, second])
    assert f"{second}, row 1: " in str(refused.value) and str(first) not in str(refused.value)


def test_tables_are_read_too(tmp_path):
    row = {"id": "1", **QUESTION, "supporting_titles": ["Ulm"]}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "p.parquet")
    with (tmp_path / "c.csv").open("w", newline="") as file:
        csv.writer(file).writerows([row, [1, "q", "a", '["Ulm"]']])
    read = read_questions([tmp_path / "p.parquet", tmp_path / "c.csv"]).questions
    assert [(q.source, q.id, q.titles) for q in read] == [("p", "1", ("Ulm",)), ("c", "1", ("Ulm",))]


def test_an_id_names_one_question_of_a_source(tmp_path):
    row = {"id": "1", **QUESTION}
    first, second = written(tmp_path / "a.jsonl", [row, row]), written(tmp_path / "b.jsonl", [row])
    read = read_questions([first, second])
    assert [question.key for question in read.questions] == [("a", "1"), ("b", "1")]
    assert read.bad.first == [f"{first}, row 2: its id '1' is also that of {first}, row 1"]


def test_rows_without_an_id_are_known_by_their_number(tmp_path):
    path = written(tmp_path / "a.jsonl", [QUESTION] * 2)
    assert [question.id for question in read_questions([path]).questions] == ["row-1", "row-2"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("none.jsonl", None, "no such file"),
        ("a.jsonl", b"[]", "no usable question: .*a.jsonl has no rows"),
        ("b.jsonl", b"[1]", "no usable question: [^:]*b.jsonl, row 1: "),
        ("a.csv", b"x,y\n1,2\n", "no column `question`"),
        ("a.parquet", b"PAR1", "not a parquet file"),
    ],
)
def test_a_file_without_questions_is_refused(tmp_path, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        read_questions([tmp_path / name])


@pytest.mark.skipif(
    not DATA.is_dir(), reason="left out: the real data is not there (RAG_R1_DATA names its folder)"
)
@pytest.mark.parametrize(
    ("name", "titles"),
    [
        ("hotpotqa_raw_distractor_20.json", 2),
        ("2wikimultihopqa_raw_20.json", 2),
        ("musique_ans_raw_20.jsonl", 1),
        ("popqa_flashrag_20.jsonl", 1),
        ("nq_flashrag_20.jsonl", 0),
    ],
)
def test_the_raw_files_of_the_data_sets_name_their_evidence(name, titles):
    path = DATA / "raw_samples" / name
    if not path.is_file():
        pytest.skip("left out: this sample is not there")
    read = read_questions([path])
    assert len(read.questions) == 20 and not read.bad.count
    assert all(len(q.titles) >= titles and bool(q.titles) == bool(titles) for q in read.questions)


@pytest.mark.parametrize(
    "row",
    [
        {"context": [["Ulm", ["A  city.", " Old."]], ["Rome", ["No."]]]},
        {"context": {"title": ["Ulm", "Rome"], "sentences": [["A city.", "Old."], ["No."]]}},
        {"context": '[["Ulm", ["A city.", "Old."]], ["Rome", ["No."]]]'},
        {
            "paragraphs": [
                {"title": "Ulm", "paragraph_text": "A city. Old."},
                {"title": "Rome", "text": "No."},
            ]
        },
        {"metadata": {"context": [["Ulm", ["A city. Old."]], ["Rome", ["No."]]]}},
    ],
)
def test_the_text_of_the_evidence_is_read_in_the_forms_of_the_data_sets(row):
    assert list(paragraphs_of(row)) == [("Ulm", "A city. Old."), ("Rome", "No.")]


@pytest.mark.parametrize(
    "row",
    [
        {"context": 5, "paragraphs": [5, {"title": "Ulm"}]},
        {"context": [["Ulm", [5]], ["Ulm"], 5, ["Ulm", [" "]]]},
        {"context": {"title": "Ulm", "sentences": None}},
    ],
)
def test_text_of_another_shape_is_no_text(row):
    assert list(paragraphs_of(row)) == []


def test_the_paragraphs_of_missing_pages_become_a_supply(tmp_path):
    row = {**QUESTION, "context": [["Ulm", ["A city."]], ["Rome", ["No."]], ["Half", ["\ud800"]]]}
    data = [written(tmp_path / "a.jsonl", [row, row]), written(tmp_path / "b.jsonl", [row])]
    write_rows(tmp_path / "c.parquet", [QuestionRow("q", ("a",), id="1")])
    assert write_supply([*data, tmp_path / "c.parquet"], ["Ulm", "Half", "Bonn"], tmp_path / "s.jsonl") == 1
    assert rows_of(tmp_path / "s.jsonl") == [{"title": "Ulm", "text": "A city."}]
