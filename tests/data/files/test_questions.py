"""Which rows are read as questions, and what is said about the others."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_process.command import main
from rag_r1.data.evidence import GoldEvidence
from rag_r1.data.files.bad_rows import NAMED
from rag_r1.data.files.question_file import collect, read_file
from rag_r1.data.files.questions import Question, parse_row
from rag_r1.data.rows import read_rows
from rag_r1.io.errors import DataError

ROWS = [
    {"question": "Who?", "golden_answers": "Ada"},  # RAG-R1
    {"id": "test_1", "question": "Where?", "golden_answers": ["Paris", "Paris, France"]},  # FlashRAG
    {"_id": "5abe", "question": "When?", "answer": "1999", "supporting_facts": [["x", 0]]},  # HotpotQA
]
QUESTIONS = [
    Question("Who?", ("Ada",)),
    Question("Where?", ("Paris", "Paris, France"), "test_1"),
    Question("When?", ("1999",), "5abe"),
]


def test_rag_r1_flashrag_and_hotpotqa_rows_are_read():
    assert [parse_row(row) for row in ROWS] == QUESTIONS


@pytest.mark.parametrize("form", ["array.json", "lines.jsonl", "lines.json", "bom.json"])
def test_json_arrays_and_json_lines_are_told_apart_by_their_content(tmp_path, form):
    lines = "\n".join(json.dumps(row) for row in ROWS) + "\n\n"
    text = lines if form.startswith("lines") else json.dumps(ROWS, indent=2)
    (tmp_path / form).write_text(text, encoding="utf-8-sig" if form.startswith("bom") else "utf-8")
    source = read_file(tmp_path / form)
    assert source.questions == QUESTIONS
    assert (source.n_read, source.n_malformed) == (3, 0)


def test_parquet_is_read(tmp_path):
    rows = [{"id": 7, "question": "Who?", "golden_answers": ["Ada"], "metadata": {"much": "else"}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "q.parquet")
    assert read_file(tmp_path / "q.parquet").questions == [Question("Who?", ("Ada",), "7")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("Who?", "not an object"),
        ({"golden_answers": "x"}, "`question`"),
        ({"question": "  ", "golden_answers": "x"}, "`question`"),
        ({"question": 3, "golden_answers": "x"}, "`question`"),
        ({"question": "Who?"}, "no answer"),
        ({"question": "Who?", "answer": {"text": "x"}}, "`answer` must be"),
        ({"question": "Who \ud800?", "golden_answers": "x"}, "surrogate"),
        ({"question": "Who?", "golden_answers": "\udfff"}, "surrogate"),
        *(
            ({"question": "Who?", "golden_answers": golds}, message)
            for golds, message in (
                (None, "no answer"),
                ([], "`golden_answers` is empty"),
                (["", " "], "`golden_answers` is empty"),
                ([["x"]], "`golden_answers` must be"),
                (True, "`golden_answers` must be"),
                (float("nan"), "`golden_answers` must be"),
            )
        ),
    ],
)
def test_what_is_wrong_with_a_row_is_said(row, message):
    with pytest.raises(ValueError, match=message):
        parse_row(row)


def test_malformed_rows_are_counted_and_the_first_ones_told_by_number(tmp_path):
    bad = ["{not json", "\xff\xfe broken", "[1]", '{"question": "Who?"}', '"text"', "null", "{}"]
    path = tmp_path / "q.jsonl"
    path.write_bytes("\n".join([json.dumps(ROWS[0]), *bad, json.dumps(ROWS[1])]).encode("latin-1"))
    source = read_file(path)
    assert source.questions == QUESTIONS[:2]
    assert (source.n_read, source.n_malformed, len(source.malformed)) == (9, 7, NAMED)
    assert source.malformed[0].startswith("row 2: not JSON")
    missing = "no answer: needs one of golden_answers, answers, answer; the row has question"
    assert source.malformed[3] == f"row 5: {missing}"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jsonl", b"", "no usable question in .*empty.jsonl: it has no rows"),
        ("other.jsonl", b'{"prompt": "x"}', "no usable question in .*other.jsonl: row 1: `question`"),
        ("cut.json", b'[{"question": "Who?"', "cut.json begins as a JSON array"),
        ("deep.json", b"[" * 200_000, "deep.json"),
        ("text.parquet", b"not parquet", "text.parquet is not a parquet file"),
        ("missing.json", None, "cannot read .*missing.json"),
    ],
)
def test_a_file_without_a_usable_row_is_an_error_that_names_it(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_file(tmp_path / name)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
rows = json_values | st.fixed_dictionaries(
    {}, optional={key: json_values for key in ("question", "golden_answers", "answer", "id", "_id")}
)


@pytest.mark.slow
@given(st.lists(rows, max_size=5))
def test_no_row_whatever_ends_the_run_and_what_is_kept_can_be_written(values):
    good = {"question": "Who?", "golden_answers": "Ada"}
    source = collect("made", enumerate([good, *values], 1))
    assert source.n_read == len(values) + 1 == len(source.questions) + source.n_malformed
    for question in source.questions:
        assert question.golds and question.question.strip()
        " ".join([question.question, *question.golds, question.id or ""]).encode("utf-8")


def test_the_titles_of_gold_passages_are_kept_in_the_rows_of_a_training(tmp_path):
    rows = [
        {"question": "Who?", "answer": "x", "supporting_titles": ["Rome", "Tiber"]},
        {"question": "When?", "answer": "y"},
        {"question": "Where?", "answer": "z", "supporting_titles": "no list"},
    ]
    (path := tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [dict(question.metadata) for question in read_file(path).questions] == [
        {"supporting_titles": ["Rome", "Tiber"]},
        {},
        {},
    ]
    (tmp_path / "q.csv").write_text('question,answer,supporting_titles\nWho?,x,"[""Rome""]"\nWhen?,y,Rome\n')
    assert [dict(question.metadata) for question in read_file(tmp_path / "q.csv").questions] == [
        {"supporting_titles": ["Rome"]},
        {},
    ]
    words = ["--train", str(path), "--source-name", "mine", "--out", str(tmp_path / "out")]
    assert main("", "rag_r1_mq", arguments=words) == 0
    first, second, _ = (row["extra_info"] for row in read_rows(tmp_path / "out" / "train.parquet"))
    assert GoldEvidence.of(first).titles == {"rome", "tiber"} and not GoldEvidence.of(second)
