"""The passages of a few invented pages, in KILT's form."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_process import split_kilt_to_100
from data_process.split_kilt_to_100 import main, split, split_page
from rag_r1.io.errors import DataError


def page(title, *paragraphs):
    return {"wikipedia_id": "7", "wikipedia_title": title, "text": list(paragraphs), "categories": ""}


PAGES = [
    page("Ulm", "Ulm\n", "Ulm is a town .\n", "Section::::History.\n", "BULLET::::- 854 : first named\n"),
    page("Empty"),
    page('A "quoted"  title', *(f"word{i} " for i in range(250))),
    *(page(f"Page {i}", "words " * (i % 7) + f"{i} é\u2028line\n") for i in range(40)),
]


@pytest.fixture
def kilt(tmp_path):
    path = tmp_path / "kilt.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in PAGES), encoding="utf-8")
    return path


def rows(path):
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.name.endswith(".gz") else data).decode()
    return [json.loads(line) for line in text.split("\n") if line]


def test_marks_are_taken_out_and_words_cut_after_every_hundredth(kilt, tmp_path):
    done = split(kilt, tmp_path / "out.jsonl", progress=False)
    passages_ = rows(tmp_path / "out.jsonl")
    assert passages_[0] == {"id": "0", "contents": '"Ulm"\nUlm Ulm is a town . History. - 854 : first named'}
    long = [row["contents"] for row in passages_ if "quoted" in row["contents"]]
    assert [text.split("\n")[0] for text in long] == ['"A "quoted" title"'] * 3
    assert [len(text.split("\n")[1].split()) for text in long] == [100, 100, 50]
    assert [row["id"] for row in passages_] == [str(i) for i in range(done.passages)]
    assert (done.lines, done.passages) == (43, 44)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["kilt.json", "out.jsonl"]


@given(st.lists(st.text(max_size=30), max_size=5), st.integers(1, 5))
def test_no_word_is_lost_doubled_or_moved(paragraphs, words):
    passages = list(split_page(json.dumps(page("T", *paragraphs)).encode(), words))
    passages_ = [text.removeprefix('"T"\n').split() for text in passages]
    assert [word for part in passages_ for word in part] == " ".join(paragraphs).split()
    assert all(len(part) == words for part in passages_[:-1])


def test_gzip_in_and_out_hold_the_same_rows(kilt, tmp_path):
    packed = tmp_path / "kilt.json.gz"
    packed.write_bytes(gzip.compress(kilt.read_bytes()))
    split(kilt, tmp_path / "a.jsonl", progress=False)
    split(packed, tmp_path / "b.jsonl.gz", progress=False)
    assert rows(tmp_path / "a.jsonl") == rows(tmp_path / "b.jsonl.gz")


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
@pytest.mark.parametrize("packed", [False, True], ids=["plain input", "gzipped input"])
def test_a_run_that_was_stopped_goes_on_and_ends_in_the_same_bytes(kilt, tmp_path, monkeypatch, name, packed):
    monkeypatch.setattr(split_kilt_to_100, "CHECKPOINT_PAGES", 10)
    if packed:
        (tmp_path / "kilt.json.gz").write_bytes(gzip.compress(kilt.read_bytes()))
        kilt = tmp_path / "kilt.json.gz"
    whole = tmp_path / "whole" / name
    split(kilt, whole, progress=False)
    lines = []

    def stops_at_the_25th(line, words):
        lines.append(line)
        if len(lines) == 25:
            raise KeyboardInterrupt
        return split_page(line, words)

    monkeypatch.setattr(split_kilt_to_100, "split_page", stops_at_the_25th)
    with pytest.raises(KeyboardInterrupt):
        split(kilt, tmp_path / name, progress=False)
    assert not (tmp_path / name).exists()
    with (tmp_path / (name + ".part")).open("ab") as stream:
        stream.write(b"half a row")  # what a kill in the middle of a write leaves
    split(kilt, tmp_path / name, progress=False)
    assert len(lines) == 25 + 43 - 20, "it went on behind the second record of progress"
    assert (tmp_path / name).read_bytes() == whole.read_bytes()


def test_what_is_left_of_another_input_is_not_taken_over(kilt, tmp_path):
    out = tmp_path / "out.jsonl"
    (tmp_path / "out.jsonl.part").write_text("of another input")
    (tmp_path / "out.jsonl.progress.json").write_text(
        json.dumps({"input_bytes": 5, "words": 100, "read": 3, "lines": 1, "written": 16, "passages": 9})
    )
    split(kilt, out, progress=False)
    assert rows(out)[0]["id"] == "0"


@pytest.mark.parametrize(
    "line, fault",
    [
        ("{", "not JSON"),
        ("[1]", "not a page of KILT"),
        ('{"text": []}', "not a page of KILT"),
        ('{"wikipedia_title": "T", "text": "words"}', "not a page of KILT"),
        ('{"wikipedia_title": "T", "text": [1]}', "must be a list of strings"),
    ],
)
def test_a_line_that_is_no_page_is_named(tmp_path, line, fault):
    path = tmp_path / "kilt.json"
    path.write_text(json.dumps(PAGES[0]) + "\n\n" + line + "\n")
    with pytest.raises(DataError, match=f"kilt.json, line 3: .*{fault}"):
        split(path, tmp_path / "out.jsonl", progress=False)


def test_half_a_surrogate_pair_does_not_stop_it(tmp_path):
    path = tmp_path / "kilt.json"
    path.write_text('{"wikipedia_title": "T", "text": ["a \\ud800 b"]}\n')
    split(path, tmp_path / "out.jsonl", progress=False)
    assert rows(tmp_path / "out.jsonl")[0]["contents"] == '"T"\na ? b'


def test_the_command_line(kilt, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    assert main(["--input", str(kilt), "--out", str(out)]) == 0
    assert "44 passages of 43 lines" in capsys.readouterr().out
    assert main(["--input", str(kilt), "--out", str(out)]) == 1
    assert "--overwrite" in capsys.readouterr().err
    for wrong in (["--out", "o.tsv"], ["--out", "o.jsonl", "--words", "0"]):
        with pytest.raises(SystemExit):
            main(["--input", str(kilt), *wrong])
    assert main(["--input", str(tmp_path / "none"), "--out", str(tmp_path / "x.jsonl")]) == 1


def test_a_page_file_that_was_cut_off_is_named(tmp_path, capsys):
    (tmp_path / "kilt.json.gz").write_bytes(gzip.compress(b"{}\n" * 100)[:-9])
    assert main(["--input", str(tmp_path / "kilt.json.gz"), "--out", str(tmp_path / "out.jsonl")]) == 1
    assert f"{tmp_path}/kilt.json.gz is a broken gzip file" in capsys.readouterr().err


def test_a_file_that_breaks_before_the_place_where_a_run_goes_on_is_named(kilt, tmp_path, monkeypatch):
    monkeypatch.setattr(split_kilt_to_100, "CHECKPOINT_PAGES", 10)
    packed = tmp_path / "kilt.json.gz"
    data = gzip.compress(kilt.read_bytes())
    for broken in (data[:-9] + bytes(9), data[:40] + bytes(len(data) - 40)):
        packed.write_bytes(broken)
        with pytest.raises(DataError, match=f"{packed} is a broken gzip file"):
            split(packed, tmp_path / "out.jsonl", progress=False)
        assert (tmp_path / "out.jsonl.progress.json").exists()


def test_the_input_is_not_overwritten_by_the_output(kilt, tmp_path, capsys):
    pages = tmp_path / "pages.jsonl"
    pages.write_bytes(kilt.read_bytes())
    for flags in ([], ["--overwrite"]):
        assert main(["--input", str(pages), "--out", str(pages), *flags]) == 1
        error = capsys.readouterr().err
        assert "a file that is read" in error and "--overwrite" not in error
    assert pages.read_bytes() == kilt.read_bytes()


def test_an_input_that_is_not_kilt_is_named_before_the_work(kilt, tmp_path, capsys):
    (tmp_path / "corpus.jsonl").write_text('{"id": "0", "contents": "text"}\n')
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(kilt.read_bytes())[:-20])
    for name, fault in (("corpus.jsonl", "not a page of KILT"), ("cut.json.gz", "broken gzip")):
        words = ["--input", str(tmp_path / name), "--out", str(tmp_path / "o.jsonl"), "--check-only"]
        assert main(words) == 1
        error = capsys.readouterr().err
        assert name in error and fault in error
