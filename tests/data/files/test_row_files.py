"""Every form of file gives the same rows, and what cannot be read is told with what can."""

from __future__ import annotations

import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.data.files.question_file import read_file
from rag_r1.data.files.questions import Question
from rag_r1.data.files.row_files import open_rows, refuse_repeated
from rag_r1.io.errors import DataError

QUESTIONS = [
    Question("Who?", ("Ada", "A. L., Countess"), "7"),
    Question("Where, in\nParis? “é”".replace("\n", " "), ("here",), "8"),
]
ROWS = [{"id": q.id, "question": q.question, "golden_answers": list(q.golds)} for q in QUESTIONS]


def content(name: str) -> bytes:
    if ".csv" in name or ".tsv" in name:
        mark = "," if ".csv" in name else "\t"
        cells = [[row["id"], row["question"], json.dumps(row["golden_answers"])] for row in ROWS]
        quoted = [[cell.replace('"', '""') for cell in line] for line in cells]
        lines = [["id", "question", "golden_answers"], *([f'"{cell}"' for cell in line] for line in quoted)]
        text = "\r\n".join(mark.join(line) for line in lines) + "\r\n"
    elif ".jsonl" in name:
        text = "".join(json.dumps(row) + "\n" for row in ROWS)
    else:
        text = json.dumps(ROWS)
    data = text.encode("utf-8-sig" if name.startswith("bom") else "utf-8")
    return gzip.compress(data) if name.endswith(".gz") else data


NAMES = "q.json q.json.gz q.jsonl q.jsonl.gz q.csv q.CSV q.csv.gz q.tsv q.tsv.gz bom.csv"


@pytest.mark.parametrize("name", NAMES.split())
def test_json_csv_and_tsv_plain_and_gzipped_give_the_same_questions(tmp_path, name):
    (path := tmp_path / name).write_bytes(content(name.lower()))
    source = read_file(path)
    assert source.questions == QUESTIONS
    assert [question.row for question in source.questions] == [1, 2]


def test_a_cell_without_brackets_is_one_answer(tmp_path):
    (path := tmp_path / "q.csv").write_text('question,answer\nWho?,"Ada, Countess"\n\nWhen?,1815\n')
    assert read_file(path).questions == [Question("Who?", ("Ada, Countess",)), Question("When?", ("1815",))]


def test_bad_rows_of_a_table_are_named_by_their_row_below_the_header(tmp_path):
    path = tmp_path / "q.csv"
    path.write_bytes(
        b"question,answers\nWho?,Ada\nWhen?\nWhy?,a,b\nHow?,\"['a', 'b']\"\nWhat \xff?,x\n,x\nWhere?,here\n"
    )
    source = read_file(path)
    assert [question.question for question in source.questions] == ["Who?", "Where?"]
    assert source.malformed == [
        "row 2: no answer: needs one of golden_answers, answers, answer; the row has question",
        "row 3: 3 cells, but the header names 2 columns",
        'row 4: `answers` begins as a list but is not JSON, ["a", "b"]: "[\'a\', \'b\']"',
        "row 5: holds half of a character (a lone surrogate): make the file UTF-8",
        "row 6: `question` is missing; the row has answers",
    ]


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("query", "answers"), "has no column `question`: its columns are query, answers"),
        (("question", "gold text"), "has no column of answers: its columns are question, 'gold text'"),
    ],
)
def test_a_missing_column_is_told_with_those_that_are_there(tmp_path, form, columns, message):
    path = tmp_path / f"q.{form}"
    if form == "csv":
        path.write_text(",".join(columns) + "\nWho?,Ada\n")
    else:
        pq.write_table(pa.table({columns[0]: ["Who?"], columns[1]: ["Ada"]}), path)
    with pytest.raises(DataError, match=message):
        read_file(path)


def test_a_missing_key_of_json_is_told_with_those_that_are_there(tmp_path):
    (path := tmp_path / "q.jsonl").write_text('{"query": "Who?", "golden_answers": "Ada"}\n')
    with pytest.raises(DataError, match="row 1: `question` is missing; the row has query, golden_answers"):
        read_file(path)


@pytest.mark.parametrize("name", ["q.xlsx", "q.txt", "q.jsonl"])
def test_a_file_of_another_form_is_told_what_is_read(tmp_path, name):
    (path := tmp_path / name).write_bytes(b"PK\x03\x04 a spreadsheet, say\n")
    with pytest.raises(DataError, match=r"not JSON.*Accepted are \.json .*\.csv and \.tsv .*\.gz.*\.parquet"):
        read_file(path)


@pytest.mark.parametrize("name", ["q.csv", "q.json", "q.jsonl", "q.csv.gz", "gzipped.csv"])
@pytest.mark.parametrize(
    ("encoding", "named"),
    [("utf-16", "UTF-16"), ("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"), ("utf-32", "UTF-32")],
)
def test_a_file_in_utf_16_is_refused_with_the_command_that_converts_it(tmp_path, name, encoding, named):
    text, path = content(name.removesuffix(".gz")).decode().encode(encoding), tmp_path / name
    path.write_bytes(gzip.compress(text) if "gz" in name else text)
    with pytest.raises(DataError) as raised:
        read_file(path)
    convert = f"iconv -f {named} -t UTF-8"
    command = f"zcat < {path} | {convert}" if "gz" in name else f"{convert} {path}"
    assert f"{path} is not UTF-8 but {named}: convert it (`{command} > NEW`)" in str(raised.value)


@pytest.mark.parametrize("data", [b"\0a\xdc\0" * 9, b"\xff\xfe\0\xdc" * 999, b"\x89PNG\n\0" * 9])
def test_a_file_with_null_bytes_that_is_not_utf_16_is_not_text(tmp_path, data):
    (tmp_path / "q.jsonl").write_bytes(data)
    with pytest.raises(DataError, match="q.jsonl is not text: give another file"):
        read_file(tmp_path / "q.jsonl")


def rows_of(path, **more) -> tuple[list[str] | None, list]:
    with open_rows(path, ("question", "answer"), (), **more) as (columns, rows):
        return columns, list(rows)


@pytest.mark.parametrize("begin", ["", " \n", "\ufeff", "\ufeff\n "])
@pytest.mark.parametrize("packed", [False, True])
def test_an_array_is_read_element_by_element_wherever_it_begins(tmp_path, begin, packed):
    values = [{"a": [1, 2.5, "é"]}, None, "text", 10**15, [True]]
    data = (begin + json.dumps(values)).encode()
    (path := tmp_path / "q.json").write_bytes(gzip.compress(data) if packed else data)
    assert rows_of(path) == (None, list(enumerate(values, 1)))


def test_an_array_that_is_cut_short_gives_its_rows_and_then_says_after_which_it_ends(tmp_path):
    (path := tmp_path / "q.json").write_text(json.dumps(ROWS)[:-5])
    read = []
    message = "q.json begins as a JSON array but is not one: .* after element 1. It is"
    with pytest.raises(DataError, match=message), open_rows(path, (), ()) as (_, rows):
        for row in rows:
            read.append(row)
    assert read == [(1, ROWS[0])]


def test_an_array_under_a_key_is_read_if_that_is_the_first_one(tmp_path):
    (path := tmp_path / "q.json").write_text('\n{\n  "Data" : [{"a": 1}, {"a": 2}], "Version": 1.0}')
    assert rows_of(path, within="Data") == (None, [(1, {"a": 1}), (2, {"a": 2})])
    path.write_text('{"Data": 1}\n{"data": 2}\n')
    assert rows_of(path, within="Data") == (None, [(1, {"Data": 1}), (2, {"data": 2})])


def test_a_table_without_a_header_has_the_columns_that_are_given(tmp_path):
    (path := tmp_path / "q.csv").write_text('Who?,,"Ada, Countess"\nWhen?,,1815\n')
    who, when = {"question": "Who?", "answer": "Ada, Countess"}, {"question": "When?", "answer": "1815"}
    header = ["question", "", "answer"]
    assert rows_of(path, header=tuple(header)) == (header, [(1, who), (2, when)])
    path.write_text("Question,Answer\nWho?,Ada\n")
    row = {"Question": "Who?", "Answer": "Ada"}
    assert rows_of(path, header=("question", "answer")) == (list(row), [(1, row)])


def test_a_gzip_file_that_is_cut_short_says_so(tmp_path):
    (path := tmp_path / "q.jsonl.gz").write_bytes(content("q.jsonl.gz")[:-9])
    with pytest.raises(DataError, match="q.jsonl.gz is a broken gzip file"):
        read_file(path)


words = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), min_size=1).map(str.strip).filter(bool)


@given(rows=st.lists(st.tuples(words, words.filter(lambda text: text[0] != "[")), min_size=1))
def test_what_csv_quotes_is_read_back_as_it_was(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "q.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("question", "answer"), *rows])
    assert read_file(path).questions == [Question(" ".join(text.split()), (gold,)) for text, gold in rows]


@pytest.mark.parametrize("name", ["q.jsonl.gz", "q.csv.gz", "q.tsv.gz"])
@pytest.mark.parametrize("first", [b"question\tid\n", b""])
def test_a_line_without_end_is_refused_before_it_is_unpacked_as_a_whole(tmp_path, name, first):
    (path := tmp_path / name).write_bytes(gzip.compress(first + b"x" * (20 << 20), 1))
    with pytest.raises(DataError, match=rf"{name}, line {1 + bool(first)}: longer than 16 MiB"):
        rows_of(path)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (b"", b"[1]", "line 1: longer than 16 MiB"),
        (b"[1,", b"2]", "more than 1,048,576 characters of white space in a row"),
    ],
)
def test_white_space_without_end_is_no_array(tmp_path, before, after, message):
    (path := tmp_path / "q.json.gz").write_bytes(gzip.compress(before + b" " * (20 << 20) + after, 1))
    with pytest.raises(DataError, match=message):
        rows_of(path)


def test_a_file_that_is_named_twice_is_refused_by_whatever_path(tmp_path):
    """Rows that are read twice would be trained on twice."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.jsonl").symlink_to("a.jsonl")
    for other in ("a.jsonl", "folder/../a.jsonl", "link.jsonl"):
        with pytest.raises(DataError, match="a.jsonl is given twice") as refused:
            refuse_repeated([tmp_path / "a.jsonl", tmp_path / "b.jsonl", str(tmp_path / other)])
        assert other in str(refused.value)
    refuse_repeated([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])


def test_a_column_that_is_there_twice_is_refused_unless_it_is_not_read(tmp_path):
    (path := tmp_path / "q.csv").write_text("question,answer,note,note,answer\nQ?,a,,,b\n")
    with pytest.raises(DataError, match="the column `answer` twice"):
        rows_of(path)
    path.write_text("question,answer,note,note\nQ?,a,x,y\n")
    assert rows_of(path)[1][0][1]["answer"] == "a"


def test_a_text_that_is_named_gz_and_is_no_json_is_a_broken_gzip_file(tmp_path):
    (path := tmp_path / "q.jsonl.gz").write_text("not gzip")
    with pytest.raises(DataError, match="broken gzip file"):
        rows_of(path)
    path.write_text('{"question": "Q?"}')
    assert rows_of(path)[1] == [(1, {"question": "Q?"})], "which a download may have unpacked"
