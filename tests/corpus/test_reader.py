"""Reading a corpus: every format of the retrieval server's build, from any place, with the faults of rows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.corpus import reader
from rag_r1.corpus.inputs import check_first_rows
from rag_r1.corpus.reader import START, Corpus, Passage
from rag_r1.io.errors import DataError
from rag_r1.runs.start_checks import StartError

ROWS = [
    {"id": "1", "contents": '"Ulm"\nA city.'},
    {"id": 2, "title": 'The "Rock"', "text": "An island.\u2028Small."},
    {"id": "3", "contents": "no title", "url": "http://x"},
]
PASSAGES = [
    Passage("1", '"Ulm"\nA city.'),
    Passage("2", '"The "Rock""\nAn island.\u2028Small.'),
    Passage("3", "no title", "http://x"),
]


def lines(rows: list) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def passages(corpus: Corpus, start=START) -> list[Passage]:
    return [row for row, _ in corpus.rows(start, progress=False) if isinstance(row, Passage)]


def faults(corpus: Corpus) -> list[str]:
    rows = corpus.rows(progress=False)
    return [f"{corpus.location(place)}: {row}" for row, place in rows if isinstance(row, ValueError)]


def arrow_index(folder: Path, rows: list[Passage], batch: int = 2) -> Path:
    """An index folder's text, as the retrieval server writes it."""
    folder.mkdir()
    schema = pa.schema([("id", pa.string()), ("contents", pa.string()), ("url", pa.string())])
    with pa.ipc.new_file(str(folder / "passages.arrow"), schema) as writer:
        for first in range(0, len(rows), batch):
            part = rows[first : first + batch]
            columns = zip(*((passage.id, passage.contents, passage.url) for passage in part), strict=True)
            writer.write_batch(pa.record_batch([pa.array(c, pa.string()) for c in columns], schema=schema))
    return folder


def every_format(folder: Path) -> list[Path]:
    """The same passages in each format."""
    (folder / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines(ROWS[:2]) + b"\n \n" + lines(ROWS[2:]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines(ROWS[:1])) + gzip.compress(lines(ROWS[1:])))
    table = {name: [getattr(passage, name) for passage in PASSAGES] for name in ("id", "contents", "url")}
    pq.write_table(pa.table(table), folder / "c.parquet", row_group_size=2)
    files = [folder / name for name in ("a.jsonl", "b.jsonl.gz", "c.parquet")]
    return [*files, arrow_index(folder / "index", PASSAGES)]


@pytest.mark.parametrize("number", range(4), ids=["jsonl", "gzip", "parquet", "index"])
def test_every_format_gives_the_same_passages(tmp_path, number):
    assert passages(Corpus([every_format(tmp_path)[number]])) == PASSAGES


def test_a_folder_and_several_files_are_one_corpus_in_order(tmp_path):
    paths = every_format(tmp_path)
    assert passages(Corpus(paths)) == PASSAGES * 4
    assert passages(Corpus([tmp_path])) == PASSAGES * 3, "files of the folder, not folders in it"


def test_the_tsv_of_kilt_keeps_its_contents_and_has_the_title_before_three_blanks(tmp_path):
    path = tmp_path / "kilt.tsv"
    path.write_text("0\tAnarchism   is a philosophy\n1\tno title here\n", encoding="utf-8")
    read = passages(Corpus([path]))
    assert read == [Passage("0", "Anarchism   is a philosophy"), Passage("1", "no title here")]
    assert [passage.title for passage in read] == ["Anarchism", None]


@pytest.mark.parametrize(
    ("contents", "title"),
    [
        ('"Ulm"\ntext', "Ulm"),
        ("Ulm\ntext", "Ulm"),
        ('"The "Rock""\ntext', 'The "Rock"'),
        ('""\ntext', None),
        ("text only", None),
        ("x" * 500 + "\ntext", None),
    ],
)
def test_a_title_is_the_first_line_without_its_outer_quotes(contents, title):
    assert Passage("1", contents).title == title


def test_reading_goes_on_from_any_place_in_any_format(tmp_path):
    corpus = Corpus(every_format(tmp_path))
    rows = list(corpus.rows(progress=False))
    assert len(rows) == 12
    for number, (_, place) in enumerate(rows, 1):
        assert list(corpus.rows(place, progress=False)) == rows[number:]


def test_rows_that_cannot_be_used_are_named_and_the_others_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "MAX_LINE_BYTES", 200)
    path = tmp_path / "bad.jsonl"
    path.write_bytes(
        b'{"id": "1"}\n[1]\n{"id": "", "contents": "x"}\n{"id": "1", "contents": "\\ud800"}\n\xff\n'
        + b'{"id": "1", "contents": "' + b"x" * 900 + b'"}\n' + b'{"contents": "x"}\n' + lines(ROWS[:1])
    )  # fmt: skip
    reasons = ("neither", "JSON list", "'id' is empty", "surrogate", "UTF-8", "longer than 200", "no 'id'")
    for number, (fault, reason) in enumerate(zip(faults(Corpus([path])), reasons, strict=True), 1):
        assert fault.startswith(f"{path}, line {number}: ") and reason in fault
    assert passages(Corpus([path])) == PASSAGES[:1]


def test_a_row_of_a_table_is_named_as_a_row_in_any_case_of_the_suffix(tmp_path):
    pq.write_table(pa.table({"id": ["1"], "contents": [""]}), tmp_path / "A.PARQUET")
    [fault] = faults(Corpus([tmp_path / "A.PARQUET"]))
    assert fault.endswith("A.PARQUET, row 1: 'contents' is empty")


def test_a_utf16_file_after_an_empty_one_is_refused_with_the_command_that_converts_it(tmp_path):
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "b.jsonl").write_text('{"id": "1"}\n', encoding="utf-16")
    with pytest.raises(StartError, match="b.jsonl is not UTF-8 but UTF-16: convert it"):
        check_first_rows(Corpus([tmp_path]))


def test_a_supply_may_have_no_ids(tmp_path):
    (path := tmp_path / "supply.jsonl").write_text('{"title": "Ulm", "text": "A city."}\n')
    assert passages(Corpus([path], ids=False)) == [Passage(None, '"Ulm"\nA city.')]
    assert "no 'id'" in faults(Corpus([path]))[0]


def test_what_is_no_corpus_is_refused_with_a_remedy(tmp_path):
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "manifest.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.txt").write_text("x")
    for name, message in (
        ("index", "Give the file it was built from"),
        ("empty", "no file in it ends in"),
        ("x.txt", "must end in one of"),
        ("none.jsonl", "no such file"),
    ):
        with pytest.raises(DataError, match=message):
            Corpus([tmp_path / name])


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.parquet", "passages.arrow"])
def test_a_broken_file_is_an_error_that_names_it(tmp_path, name):
    path = tmp_path / "i" / name
    path.parent.mkdir()
    path.write_bytes(gzip.compress(lines(ROWS * 500))[:-30] if name.endswith("gz") else b"PAR1 no")
    with pytest.raises(DataError, match=name):
        passages(Corpus([path.parent if name.endswith("arrow") else path]))


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=300))
def test_no_bytes_make_the_reader_fail(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "x.jsonl"
    path.write_bytes(data)
    rows = list(Corpus([path]).rows(progress=False))
    offsets = [place.offset for _, place in rows]
    assert offsets == sorted(set(offsets)) and all(0 < offset <= len(data) for offset in offsets)
    assert all(isinstance(row, Passage | ValueError) for row, _ in rows)
