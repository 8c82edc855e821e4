from __future__ import annotations

import gzip
import json
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval_server.errors import UserError
from retrieval_server.folder.corpus import MAX_LINE_BYTES, CorpusReader, write_passages
from retrieval_server.folder.passages import Passage


def read(path, **options):
    return list(CorpusReader(path, progress=False, **options))


@pytest.fixture
def write(tmp_path):
    def write(name: str, text: str | bytes):
        path = tmp_path / name
        data = text.encode() if isinstance(text, str) else text
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


TSV = "0\tUlm   Ulm is a town.\r\n1\tTrier   Older than Rome?\n"
TOWNS = [(1, Passage("0", "Ulm   Ulm is a town.")), (2, Passage("1", "Trier   Older than Rome?"))]


@pytest.mark.parametrize(
    "name, text, rows",
    [
        ("c.jsonl", '{"id": "a7", "contents": "\\"Ulm\\"\\nA"}\n', [(1, Passage("a7", '"Ulm"\nA'))]),
        ("c.jsonl", '{"id": 12, "contents": "x"}\n', [(1, Passage("12", "x"))]),
        ("c.jsonl", '{"id": "1", "title": "Ulm", "text": "A town."}', [(1, Passage("1", '"Ulm"\nA town.'))]),
        ("c.jsonl", '{"id": "2", "text": "No title."}', [(1, Passage("2", "No title."))]),
        (
            "c.jsonl",
            '{"id": "1", "contents": "x", "url": "https://a"}',
            [(1, Passage("1", "x", "https://a"))],
        ),
        ("c.jsonl", '{"id": "1", "contents": "x", "url": null}', [(1, Passage("1", "x"))]),
        ("c.tsv", TSV, TOWNS),
        ("c.tsv.gz", TSV, TOWNS),
        (
            "c.tsv",
            "1\tone\u2028still one\x85and one\n\n2\ttwo",
            [(1, Passage("1", "one\u2028still one\x85and one")), (3, Passage("2", "two"))],
        ),
        ("c.jsonl", b'\xef\xbb\xbf{"id": "1", "contents": "x"}\n', [(1, Passage("1", "x"))]),
    ],
    ids="FlashRAG,number,title,text,url,no url,TSV,packed TSV,only newlines end a row,byte order mark".split(
        ","
    ),
)
def test_rows_become_passages(write, name, text, rows):
    assert read(write(name, text)) == rows


def test_gzip_and_plain_read_the_same(write):
    rows = "".join(json.dumps({"id": i, "contents": f"text {i}"}) + "\n" for i in range(2500))
    assert read(write("a.jsonl", rows)) == read(write("b.jsonl.gz", rows))


BAD_ROWS = {
    "not JSON": b'{"id": "2", "contents": "x"',
    "a list, not a JSON object": b'["2", "x"]',
    "no 'id'": b'{"contents": "x"}',
    "neither 'contents' nor 'text'": b'{"id": "2", "title": "x"}',
    "'contents' is 5, not a string": b'{"id": "2", "contents": 5}',
    "'contents' is empty": b'{"id": "2", "contents": " "}',
    "'id' is true": b'{"id": true, "contents": "x"}',
    "'id' is empty": b'{"id": "", "contents": "x"}',
    "half a surrogate pair": b'{"id": "2", "contents": "\\ud800"}',
    "not UTF-8": b'{"id": "2", "contents": "\xff"}',
    "nested": b"[" * 100_000,
    "'url' is an object": b'{"id": "1", "contents": "x", "url": {}}',
    "'title' is 0": b'{"id": "1", "text": "x", "title": 0}',
}


@pytest.mark.parametrize("fault", BAD_ROWS)
def test_a_malformed_row_stops_with_file_line_and_fault(write, fault):
    good = b'{"id": "1", "contents": "x"}\n'
    path = write("c.jsonl", good + BAD_ROWS[fault] + b"\n" + good)
    with pytest.raises(UserError) as caught:
        read(path)
    message = str(caught.value)
    assert f"{path}, line 2: " in message and fault in message and "index build --skip-bad-rows" in message


@pytest.mark.parametrize("row", ["no tab here", "1\ttext\ttitle", "\ttext", "1\t"])
def test_a_tsv_row_of_another_shape_is_refused(write, row):
    with pytest.raises(UserError, match="line 2"):
        read(write("c.tsv", f"0\tfine\n{row}\n"))


def test_skipped_rows_are_counted_and_the_rest_is_read(write):
    path = write("c.jsonl", b"\n".join([b'{"id": "1", "contents": "x"}', *BAD_ROWS.values()]))
    reader = CorpusReader(path, skip_bad_rows=True, progress=False)
    assert [number for number, _ in reader] == [1]
    assert reader.skipped == len(BAD_ROWS)


def test_broken_gzip_unknown_format_and_missing_file_say_so(tmp_path):
    cut = tmp_path / "c.jsonl.gz"
    cut.write_bytes(gzip.compress(b'{"id": "1", "contents": "x"}\n' * 999)[:-20])
    with pytest.raises(UserError, match="broken gzip"):
        read(cut)
    (tmp_path / "c.csv").touch()
    with pytest.raises(UserError, match=r"\.jsonl, \.jsonl\.gz, \.tsv, \.tsv\.gz, \.parquet"):
        CorpusReader(tmp_path / "c.csv")
    with pytest.raises(UserError, match="no such file"):
        CorpusReader(tmp_path / "none.jsonl")


def test_a_hidden_file_is_refused_for_the_beginning_of_its_name(write):
    with pytest.raises(UserError, match="not begin with a dot"):
        CorpusReader(write(".towns.jsonl", TSV))


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def test_parquet_rows_are_read_by_the_same_rules(tmp_path):
    path = parquet(tmp_path / "c.parquet", id=[1, 2, 3], title=["Ulm", "", None], text=["A town.", "x", "y"])
    expected = [Passage("1", '"Ulm"\nA town.'), Passage("2", "x"), Passage("3", "y")]
    assert read(path) == list(enumerate(expected, start=1))
    other = parquet(tmp_path / "d.parquet", id=["a", "b"], contents=["x", "y"], url=["u", None], more=[1, 2])
    assert read(other) == [(1, Passage("a", "x", "u")), (2, Passage("b", "y"))]


def test_a_null_of_a_column_that_another_row_uses_counts_as_missing(tmp_path):
    columns = {"id": ["a", "b"], "contents": [None, "x"], "title": ["Ulm", None], "text": ["A town.", None]}
    path = parquet(tmp_path / "c.parquet", **columns)
    assert [passage for _, passage in read(path)] == [Passage("a", '"Ulm"\nA town.'), Passage("b", "x")]


def test_a_bad_parquet_row_is_named_or_skipped(tmp_path):
    path = parquet(tmp_path / "c.parquet", id=["a", None, "c"], contents=["x", "y", None])
    with pytest.raises(UserError, match="c.parquet, row 2: no 'id'"):
        read(path)
    reader = CorpusReader(path, skip_bad_rows=True, progress=False)
    assert [place for place, _ in reader] == [1] and reader.skipped == 2
    with pytest.raises(UserError, match="row 1: neither 'contents' nor 'text'"):
        read(parquet(tmp_path / "d.parquet", id=["a"], body=["x"]))
    (tmp_path / "e.parquet").write_bytes(b"PAR1 nothing of the kind PAR1")
    with pytest.raises(UserError, match="e.parquet: not a readable parquet file"):
        read(tmp_path / "e.parquet")
    with pytest.raises(UserError, match="f.parquet: not a readable parquet file"):
        read(parquet(tmp_path / "f.parquet", id=pa.array([10**12], pa.timestamp("s")), contents=["x"]))


def test_several_files_and_a_folder_are_one_corpus_in_order(write, tmp_path):
    (tmp_path / "shards").mkdir()
    second = write("shards/b.tsv", "3\tthree\n")
    first = write("shards/a.jsonl.gz", '{"id": 1, "contents": "one"}\n\n{"id": 2, "contents": "two"}\n')
    parquet(tmp_path / "shards" / "c.parquet", id=["4"], contents=["four"])
    write("shards/README.md", "words")
    reader = CorpusReader(tmp_path / "shards", progress=False)
    assert [passage.id for _, passage in reader] == ["1", "2", "3", "4"]
    assert reader.source == "a.jsonl.gz ... c.parquet (3 files)"
    assert [passage.id for _, passage in read([second, first])] == ["3", "1", "2"]
    places = [reader.locate(place).rpartition("/")[2] for place in (1, 3, 4, 5)]
    assert places == ["a.jsonl.gz, line 1", "a.jsonl.gz, line 3", "b.tsv, line 1", "c.parquet, row 1"]
    assert CorpusReader(write("\udcff.tsv", "5\tfive\n")).source == "\ufffd.tsv"
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="no file in this folder"):
        CorpusReader(tmp_path / "none")


def test_an_id_in_two_files_is_refused_with_both_places(write, tmp_path):
    files = [write("a.tsv", "x\tone\ny\ttwo\n"), write("b.tsv.gz", "z\tthree\ny\tfour\n")]
    with pytest.raises(UserError, match="a.tsv, line 2 and .*b.tsv.gz, line 2 have the same id 'y'"):
        write_passages(CorpusReader(files, progress=False), tmp_path / "p.arrow")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["c.jsonl.gz", "c.tsv.gz", "c.jsonl"])
def test_a_line_that_unpacks_to_gigabytes_is_refused_before_it_is_in_memory(tmp_path, name):
    path = tmp_path / name
    row = '{"id": "%d", "contents": "x"}\n' if "jsonl" in name else "%d\tx\n"
    with gzip.open(path, "wb", compresslevel=1) if name.endswith("gz") else path.open("wb") as file:
        file.write((row % 1).encode())
        for _ in range(256):
            file.write(b"a" * 2**20)
        file.write(b"\n" + (row % 3).encode())
    tracemalloc.start()
    with pytest.raises(UserError, match=f"{name}, line 2: longer than {MAX_LINE_BYTES} bytes"):
        read(path)
    reader = CorpusReader(path, skip_bad_rows=True, progress=False)
    assert [passage.id for _, passage in reader] == ["1", "3"] and reader.skipped == 1
    assert tracemalloc.get_traced_memory()[1] < 8 * MAX_LINE_BYTES  # half of the line
    tracemalloc.stop()


def test_a_line_of_just_the_most_bytes_is_read(write, monkeypatch):
    rows = ['{"id": "1", "contents": "xxxxx"}\n', '{"id": "2", "contents": "y"}\n']
    monkeypatch.setattr("retrieval_server.folder.corpus.MAX_LINE_BYTES", len(rows[0]))
    for text in (rows[0] + rows[1], rows[1] + rows[0], rows[1] + rows[0][:-1]):
        assert sorted(passage.id for _, passage in read(write("c.jsonl", text))) == ["1", "2"]
    with pytest.raises(UserError, match=f"line 2: longer than {len(rows[0])} bytes"):
        read(write("c.jsonl", rows[1] + rows[0].replace("x", "xx", 1)))
