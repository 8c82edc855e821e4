"""Small documents that a parser reads for ever, or that fill memory, are named as unreadable."""

import importlib.util
import json
import zlib

import pytest

from rag_r1.io.errors import DataError
from rag_r1.runs.errors import RunError
from rag_r1.tools.documents import markdown, parsers
from rag_r1.tools.documents.command import main
from rag_r1.tools.documents.corpus import index_folder
from rag_r1.tools.documents.parsers import read_document
from tests.tools.made_documents import folder_of_documents

needs_pypdf = pytest.mark.skipif(
    importlib.util.find_spec("pypdf") is None,
    reason="pypdf is not installed: pip install 'rag-r1[documents]'",
)
#: Pages for which Python's parser takes time that grows with the square of their length.
ENDLESS_PAGES = {"tags": b"<a " * 40_000, "comments": b"<!--" * 80_000, "ends": b"</" * 200_000}


def pdf(content, filters=b"/FlateDecode"):
    """A PDF of one page with a compressed content stream."""
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>",
        b"<</Length %d/Filter %s>>stream\n%s\nendstream" % (len(content), filters, content),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    out, table = b"%PDF-1.4\n", b"0000000000 65535 f \n"
    for number, item in enumerate(objects, 1):
        table += b"%010d 00000 n \n" % len(out)
        out += b"%d 0 obj%s endobj\n" % (number, item)
    end = b"trailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % len(out)
    return out + b"xref\n0 6\n" + table + end


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(parsers, "CPU_S", 0.2)
    monkeypatch.setattr(parsers, "CPU_S_PER_MIB", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("page", ENDLESS_PAGES.values(), ids=ENDLESS_PAGES)
def test_a_page_that_takes_for_ever_is_given_up_and_the_next_one_is_read(tmp_path, impatient, page):
    (tmp_path / "a.html").write_bytes(page)
    with pytest.raises(DataError, match="it takes more than 0.2 s of processor time: split it"):
        read_document(tmp_path / "a.html")
    (tmp_path / "b.html").write_text("<p>read</p>")
    assert read_document(tmp_path / "b.html").sections[0].text.strip() == "read"


def test_an_end_of_line_of_two_characters_counts_once(monkeypatch):
    monkeypatch.setattr(markdown, "MAX_LINES", 2)
    assert markdown.markdown_sections("# A\r\nb\r\n").title == "A"
    with pytest.raises(DataError, match="more than 2 lines"):
        markdown.markdown_sections("# A\r\nb\r\n\n")


@needs_pypdf
@pytest.mark.slow
def test_a_pdf_of_millions_of_operators_is_given_up(tmp_path, impatient):
    operators = b"BT /F 9 Tf " + b"(a)Tj " * 4_000_000 + b"ET"
    content = zlib.compress(zlib.compress(operators, 9))
    (tmp_path / "a.pdf").write_bytes(pdf(content, b"[/FlateDecode/FlateDecode]"))
    assert (tmp_path / "a.pdf").stat().st_size < 4000
    with pytest.raises(DataError, match="of processor time"):
        read_document(tmp_path / "a.pdf")


@pytest.mark.slow
def test_a_page_that_needs_too_much_memory_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(parsers, "MEMORY_BYTES", 100 << 20)
    monkeypatch.setattr(parsers, "MEMORY_BYTES_PER_BYTE", 0)
    (tmp_path / "a.html").write_bytes(b"<h1>" * 1_000_000)
    with pytest.raises(DataError, match="it needs more than 100 MiB of memory"):
        read_document(tmp_path / "a.html")


@needs_pypdf
@pytest.mark.parametrize(
    "data",
    [
        pdf(zlib.compress(zlib.compress(b"\0" * 80_000_000)), b"[/FlateDecode/FlateDecode]"),
        b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
        b"2 0 obj<</Type/Pages/Kids[2 0 R 2 0 R]/Count 9>>endobj\n"
        b"trailer<</Root 1 0 R>>\nstartxref\n0\n%%EOF",
        b"%PDF-1.4\n1 0 obj" + b"[" * 100_000,
        b"%PDF-1.4\nxref\n0 1\n0000000000 65535 f \n"
        b"trailer<</Size 9/Prev 9/Root 1 0 R>>\nstartxref\n9\n%%EOF",
        pdf(b"\x81a" * 100_000, b"/RunLengthDecode"),
    ],
    ids=["bomb", "page tree in a circle", "nested", "tables in a circle", "runs"],
)
def test_a_pdf_of_another_hostile_shape_is_named(tmp_path, data):
    (tmp_path / "a.pdf").write_bytes(data)
    with pytest.raises(DataError):
        read_document(tmp_path / "a.pdf")


def test_texts_that_need_no_parser_are_bounded_before_they_are_cut_up(tmp_path, monkeypatch):
    monkeypatch.setattr(markdown, "MAX_SECTIONS", 1000)
    (tmp_path / "a.md").write_text("# a\n" * 1001)
    with pytest.raises(DataError, match="more than 1,000 sections"):
        read_document(tmp_path / "a.md")
    for end in ("\n", "\r", "\u2028"):
        (tmp_path / "a.md").write_text(f"a{end}" * 1_000_001, newline="")
        with pytest.raises(DataError, match="more than 1,000,000 lines"):
            read_document(tmp_path / "a.md")
    (tmp_path / "b.txt").write_bytes(b"\n" * (17 << 20))
    with pytest.raises(DataError, match="more than 16,777,216 characters"):
        read_document(tmp_path / "b.txt")


@pytest.mark.slow
def test_a_folder_names_the_file_and_reads_the_others_in_order(tmp_path, impatient, caplog):
    docs = folder_of_documents(tmp_path / "docs")
    (docs / "a.html").write_bytes(ENDLESS_PAGES["tags"])
    with pytest.raises(RunError, match=r"1 of 4 files.*\n  a.html: it takes more than 0.2 s"):
        index_folder(docs, tmp_path / "out", progress=False)
    for number in range(30):
        (docs / f"b{number:02}.html").write_text(f"<p>page {number}</p>")
    corpus = index_folder(docs, tmp_path / "out", progress=False, skip_bad_files=True)
    files = [json.loads(line)["file"] for line in corpus.read_text().splitlines()]
    assert files == sorted(files) and len(set(files)) == 33 and "left out: a.html" in caplog.text


@pytest.mark.slow
def test_a_folder_of_endless_files_is_given_up(tmp_path, impatient, monkeypatch):
    monkeypatch.setattr("rag_r1.tools.documents.corpus._MAX_NAMED", 2)
    for number in range(9):
        (tmp_path / f"{number}.html").write_bytes(ENDLESS_PAGES["tags"])
    with pytest.raises(RunError, match=r"given up after 2 files.*\n  0.html.*\n  1.html"):
        index_folder(tmp_path, tmp_path / "out", progress=False, skip_bad_files=True)
    assert not list((tmp_path / "out").glob("corpus*"))


@pytest.mark.parametrize("name", ["a\x1b[31m\x07.txt", "b\nc.txt", "d\u202etxt.txt", "e\u200b\x9b.txt"])
def test_names_of_files_cannot_control_the_terminal(tmp_path, capsys, name):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / name).write_bytes(b"\xff\xfe\xff")
    words = ["--folder", str(tmp_path / "docs"), "--out", str(tmp_path / "out"), "--no-progress"]
    assert main(words) == 1
    report = capsys.readouterr().err
    assert "it is not utf-16 text" in report and report.count("\n") == 2
    assert not any(character in report for character in "\x1b\x07\u202e\u200b\x9b")
