"""A folder of documents becomes a corpus of passages."""

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.io.errors import DataError
from rag_r1.runs.errors import RunError
from rag_r1.sandbox.documents import html_text
from rag_r1.sandbox.worker_pool import WorkerPool
from rag_r1.tools.documents import parsers
from rag_r1.tools.documents.command import main
from rag_r1.tools.documents.corpus import document_files, index_folder, split_words
from rag_r1.tools.documents.parsers import read_ahead, read_document
from retrieval_server.folder.corpus import CorpusReader
from tests.tools.made_documents import folder_of_documents, pdf

needs_pypdf = pytest.mark.skipif(
    importlib.util.find_spec("pypdf") is None,
    reason="pypdf is not installed: pip install 'rag-r1[documents]'",
)

#: The id of a user without rights, on every Linux.
_NOBODY = 65534


def rows(corpus):
    return [json.loads(line) for line in corpus.read_text("utf-8").splitlines()]


def test_every_document_becomes_passages_with_its_title_and_file(tmp_path):
    results = rows(index_folder(folder_of_documents(tmp_path / "docs"), tmp_path / "out", progress=False))
    assert [(row["id"], row["title"], row["text"]) for row in results] == [
        (
            "lighthouse.html#1",
            "Lighthouse & keeper: The lighthouse",
            "It was built in 1873. Its keeper is Ada.",
        ),
        ("sub/notes.txt#1", "notes", "The ferry leaves at nine."),
        ("tides.md#1", "Tides of Brunn", "The tide at Brunn turns twice a day."),
        (
            "tides.md#2",
            "Tides of Brunn: Spring tides",
            "Spring tides rise nine metres. ``` # not a heading ```",
        ),
    ]
    assert all(row["url"] == row["file"] == row["id"].partition("#")[0] for row in results)


@pytest.mark.parametrize(
    "block",
    [
        "```x``` is code in a line",
        "````\n```\n# no heading\n````",
        "~~~\n```\n# no heading\n~~~~ ",
        "  ```python\n# no heading\n``` x\n# no heading\n  ```",
        "1.  an item\n\n    ```\n# no heading\n    ```",
    ],
)
def test_headings_after_code_and_none_in_it_begin_sections_of_markdown(tmp_path, block):
    (tmp_path / "a.md").write_text(f"# First\n{block}\n# Second\ntext")
    sections = [(section.heading, section.text) for section in read_document(tmp_path / "a.md").sections]
    assert sections == [("", ""), ("First", block), ("Second", "text")]


def test_a_file_whose_batch_cannot_be_started_is_read_alone(tmp_path, monkeypatch):
    def try_start(*_):
        raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr(parsers.batch_workers, "try_start", try_start)
    (tmp_path / "a.html").write_text("<p>read</p>")
    [pending] = read_ahead([tmp_path / "a.html"])
    assert pending.document().sections[0].text.strip() == "read"


@pytest.mark.timeout(60)
def test_files_of_any_size_are_read_in_order_by_one_worker_of_each_kind(tmp_path, monkeypatch):
    monkeypatch.setattr(parsers, "_BATCH_FILES", 2)
    for pool in ("file_workers", "batch_workers"):
        monkeypatch.setattr(parsers, pool, WorkerPool(1))
    names = ["0 large", "1", "2", "3 large", "4 large", "5 large", *"6789"]
    paths = [tmp_path / f"{name}.html" for name in names]
    for path in paths:
        path.write_text(f"<p>{path.stem}</p>" + " " * (100_000 if "large" in path.stem else 0))
    for documents in (read_ahead(paths), list(read_ahead(paths))):  # read at once, and after the iteration
        assert [pending.document().sections[0].text.strip() for pending in documents] == names
    parsers.close_workers()


def test_the_retrieval_server_reads_the_corpus(tmp_path):
    corpus = index_folder(folder_of_documents(tmp_path / "docs"), tmp_path / "out", progress=False)
    passages = [passage for _, passage in CorpusReader(corpus, progress=False)]
    assert [p.contents for p in passages if p.url == "sub/notes.txt"] == [
        '"notes"\nThe ferry leaves at nine.'
    ]


@needs_pypdf
def test_passages_of_a_pdf_keep_their_page(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "report.PDF").write_bytes(pdf(["Sales rose.", "", "Costs fell."], "Annual report"))
    results = rows(index_folder(docs, tmp_path / "out", progress=False))
    assert [(row["id"], row["title"], row["text"], row["url"], row["page"]) for row in results] == [
        ("report.PDF#p1.1", "Annual report (page 1)", "Sales rose.", "report.PDF#page=1", 1),
        ("report.PDF#p3.1", "Annual report (page 3)", "Costs fell.", "report.PDF#page=3", 3),
    ]


@needs_pypdf
@pytest.mark.parametrize(
    ("data", "fault"), [(b"%PDF-1.4 broken", "pypdf cannot read it"), (pdf(["", ""]), "run OCR")]
)
def test_a_pdf_without_text_is_named_with_the_reason_and_by_nothing_else(tmp_path, data, fault, caplog):
    (tmp_path / "x.pdf").write_bytes(data)
    with pytest.raises(DataError, match=fault):
        read_document(tmp_path / "x.pdf")
    assert not caplog.records


def test_files_that_cannot_be_read_are_named_and_then_refused_or_left_out(tmp_path, caplog):
    docs = folder_of_documents(tmp_path / "docs")
    (docs / "latin.txt").write_bytes("Käse".encode("latin-1"))
    with pytest.raises(
        RunError, match=r"1 of 4 files.*\n  latin.txt: it is not UTF-8 text: convert it with `iconv -f LATIN1"
    ):
        index_folder(docs, tmp_path / "out", progress=False)
    assert not list((tmp_path / "out").glob("corpus*"))
    assert len(rows(index_folder(docs, tmp_path / "out", progress=False, skip_bad_files=True))) == 4
    assert "left out: latin.txt" in caplog.text


@pytest.fixture
def no_root() -> Iterator[Path]:
    """A folder in which a user without root's rights, who this process is meanwhile, may do everything."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(_NOBODY)
        try:
            yield Path(name)
        finally:
            if is_root:
                os.seteuid(0)


@pytest.mark.parametrize("closed", [".", "sub"])
def test_a_folder_that_may_not_be_entered_is_named_and_not_passed_over(no_root, closed):
    docs = folder_of_documents(no_root / "docs")
    (docs / closed).chmod(0)
    try:
        with pytest.raises(RunError, match=f"the folder {docs / closed} cannot be read: check its rights"):
            document_files(docs)
    finally:
        (docs / closed).chmod(0o700)


def test_an_unchanged_folder_is_not_read_again_and_a_changed_one_is(tmp_path):
    docs = folder_of_documents(tmp_path / "docs")
    corpus = index_folder(docs, tmp_path / "out", progress=False)
    corpus.write_text("kept")
    assert index_folder(docs, tmp_path / "out", progress=False).read_text() == "kept"
    (docs / "sub" / "notes.txt").write_text("The ferry leaves at ten o'clock.")
    assert "ten o'clock" in index_folder(docs, tmp_path / "out", progress=False).read_text()


@pytest.mark.parametrize("files", [[], ["a.doc"], ["empty.txt"]])
def test_a_folder_without_text_is_refused(tmp_path, files):
    for name in files:
        (tmp_path / name).write_text("")
    with pytest.raises(RunError, match="(no file in it ends in|holds no text).*give another folder"):
        index_folder(tmp_path, tmp_path / "out", progress=False)


def test_links_that_lead_out_of_the_folder_are_not_followed(tmp_path):
    docs = folder_of_documents(tmp_path / "docs")
    (tmp_path / "private.txt").write_text("a private matter")
    os.symlink(tmp_path / "private.txt", docs / "link.txt")
    assert "private" not in index_folder(docs, tmp_path / "out", progress=False).read_text()


def test_a_link_to_nothing_is_named_or_left_out(tmp_path, caplog):
    docs = folder_of_documents(tmp_path / "docs")
    (docs / "link.txt").symlink_to("nothing")
    with pytest.raises(RunError, match=r"1 of 4 files.*\n  link.txt: No such file"):
        index_folder(docs, tmp_path / "out", progress=False)
    assert len(rows(index_folder(docs, tmp_path / "out", progress=False, skip_bad_files=True))) == 4
    assert "left out: link.txt" in caplog.text


def test_a_page_says_its_encoding(tmp_path):
    for declared, encoding in (("iso-8859-1", "latin-1"), ("utf-16", "utf-8")):
        (tmp_path / "x.html").write_bytes(f'<meta charset="{declared}"><p>Käse'.encode(encoding))
        assert read_document(tmp_path / "x.html").sections[0].text.strip() == "Käse"
    (tmp_path / "x.txt").write_bytes("Käse".encode("utf-16"))
    assert read_document(tmp_path / "x.txt").sections[0].text == "Käse"


@given(st.text(st.sampled_from("ab 北京\n\u3000\u3105é"), max_size=900))
def test_splitting_loses_nothing_and_pieces_are_about_as_long(text):
    pieces = split_words(text, 10)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    lengths = [len(split_words(piece, 1)) for piece in pieces]
    assert not pieces or max(lengths) <= 15 and max(lengths) - min(lengths) <= 1


def test_the_command_says_how_many_passages_it_wrote_or_what_is_wrong(tmp_path, capsys):
    folder, out = str(folder_of_documents(tmp_path / "docs")), str(tmp_path / "out")
    assert main(["--folder", folder, "--out", out, "--no-progress"]) == 0
    assert capsys.readouterr().out == f"4 passages: {tmp_path / 'out' / 'corpus.jsonl'}\n"
    assert main([f"@{out}/settings.yaml", "--out", f"{out}2"]) == 0
    assert Path(f"{out}2/corpus.jsonl").read_bytes() == Path(f"{out}/corpus.jsonl").read_bytes()
    assert main(["--folder", out, "--out", out, "--no-progress"]) == 1
    assert "no file in it ends in one of .txt" in capsys.readouterr().err


MARKUP = [*"< > </ /> <! <![ ]]> <!-- --> <? & &#x ; = \" '".split(), " ", "\n", "a href"]
MARKUP += "p h1 title script svg text &amp; <p> </p> <script> </script>".split()


@given(st.lists(st.sampled_from(MARKUP), max_size=30).map("".join))
def test_any_markup_gives_text_or_is_named_as_unreadable(markup):
    try:
        document = html_text(f"<script>alert(1)</script><p>before</p>{markup}")
    except DataError as error:
        assert "repair it" in str(error)
    else:
        report = "".join(section.heading + section.text for section in document.sections)
        assert "before" in report and "alert(1)" not in report


def test_a_heading_is_one_short_line_before_closing_marks_however_long_its_line(tmp_path):
    gap = " " * 20_000
    (tmp_path / "a.md").write_text(
        f"# C#\none\n## Tides ##\ntwo\n# a{gap}b\nthree\n# ##\nfour\n# {'long ' * 999}", "utf-8"
    )
    results = [section.heading for section in read_document(tmp_path / "a.md").sections]
    assert results == ["", "C#", "Tides", "a b", "", ("long " * 40)]


def test_a_markdown_heading_may_be_indented_by_up_to_three_spaces(tmp_path):
    (tmp_path / "a.md").write_text("   ## Tides\ntwo\n    # code\n", "utf-8")
    sections = read_document(tmp_path / "a.md").sections
    assert [(section.heading, section.text) for section in sections[1:]] == [("Tides", "two\n    # code")]


def test_the_text_after_a_heading_without_an_end_is_kept():
    [_, section] = html_text("<h1>Tides<p>" + "word " * 99).sections
    assert section.text.count("word") == 99 and section.heading.startswith("Tides word")


@pytest.mark.parametrize("named", ["idna", "punycode", "undefined", "no-such", "zlib"])
def test_a_page_with_an_encoding_of_no_page_is_named_like_other_bad_files(tmp_path, named):
    page = f'<meta charset="{named}"><p>{"a" * 100}.</p>'
    (tmp_path / "a.html").write_bytes(page.encode() + "é".encode())
    with pytest.raises(DataError, match=f"not {named} text: convert it"):
        read_document(tmp_path / "a.html")


def test_a_page_with_a_character_of_too_many_digits_is_named_like_other_bad_files(tmp_path):
    (tmp_path / "a.html").write_text(f"<p>&#{'1' * 5000};</p>", "utf-8")
    with pytest.raises(RunError, match=r"a\.html: it is not HTML that can be read"):
        index_folder(tmp_path, tmp_path / "out", progress=False)


def test_pdfs_that_were_left_out_for_want_of_pypdf_are_read_once_it_is_installed(tmp_path, monkeypatch):
    docs, out = tmp_path / "docs", tmp_path / "out"
    docs.mkdir()
    (docs / "a.txt").write_text("words", "utf-8")
    corpus = index_folder(docs, out, progress=False, skip_bad_files=True)
    first = corpus.stat().st_ino
    assert index_folder(docs, out, progress=False, skip_bad_files=True).stat().st_ino == first
    installed = importlib.util.find_spec("pypdf") is not None
    monkeypatch.setattr(
        "rag_r1.tools.documents.corpus.find_spec", lambda name: None if installed else object()
    )
    note = (out / "corpus.json").read_text("utf-8")
    index_folder(docs, out, progress=False, skip_bad_files=True)
    assert (out / "corpus.json").read_text("utf-8") != note


def test_what_a_run_inside_the_folder_has_written_is_no_document(tmp_path):
    (tmp_path / "a.txt").write_text("Paris lies on the Seine.")
    run = tmp_path / "outputs" / "own"
    corpus = index_folder(tmp_path, run / "documents", run=run, progress=False)
    (run / "report.md").write_text("A report.")
    (tmp_path / "itself").symlink_to("itself")
    before = corpus.stat().st_ino
    index_folder(tmp_path, run / "documents", run=run, progress=False)
    assert corpus.stat().st_ino == before and len(document_files(tmp_path, run)) == 1
    assert len(document_files(tmp_path, tmp_path)) == 2, "a run that is the folder itself hides nothing"


def test_files_of_other_kinds_are_named_since_they_are_not_read(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("Paris lies on the Seine.")
    for name in ("records.jsonl", ".hidden.docx", *(f"{number}.docx" for number in range(5))):
        (tmp_path / "notes" / name).write_text("{}")
    for out in (tmp_path / "out", Path(), tmp_path / "notes" / "out", Path("notes", "out")):
        assert main(["--folder", str(tmp_path / "notes"), "--out", str(out), "--no-progress"]) == 0
        said = capsys.readouterr()
        assert said.out.startswith("1 passages: ")
        assert said.err.endswith(".pdf): 0.docx, 1.docx, 2.docx, 3.docx, 4.docx and 1 more\n")
