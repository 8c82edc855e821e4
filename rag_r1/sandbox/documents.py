"""Extracts the text of HTML and PDF files in a sandbox worker.

A file of any format becomes a `DocumentText`. Text and Markdown files need no worker; their reader
(rag_r1/tools/documents/parsers.py) uses `decode_text` and `within_limits`.

HTML is parsed with the standard library and PDF with pypdf, which is imported only when it is needed. Files
are untrusted data: scripts, styles and comments are left out, nothing is fetched, and no markup remains.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any, BinaryIO

from rag_r1.io.errors import ICONV, DataError
from rag_r1.sandbox.job_paths import path_of

#: Most characters of text in one file; a small PDF can expand to gigabytes.
MAX_CHARS = 16 << 20
#: Most sections of one file.
MAX_SECTIONS = 200_000
#: Most characters of a title or heading.
_MAX_HEADING_CHARS = 200

#: The encoding that a page declares. If the declaration can be read as ASCII, it is not UTF-16 or UTF-32.
_CHARSET = re.compile(
    rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*(?!utf[_-]?(?:16|32))([\w.:-]{1,40})", re.IGNORECASE
)
#: Elements whose text is left out.
_SKIPPED = {"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "canvas", "select"}
#: Elements that end a word.
_BREAKS = set(
    "address article aside blockquote br caption dd div dl dt fieldset figcaption figure footer form header "
    "hr li main nav ol option p pre section table tbody td tfoot th thead tr ul".split()
)
#: Encodings of Python that web pages do not use, and whose decoding takes quadratic time.
_REFUSED_ENCODINGS = {"idna", "punycode"}
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}


@dataclass(frozen=True)
class Section:
    """A section of a document."""

    text: str
    #: Its heading; "" if it has none.
    heading: str = ""
    #: The number of its page in a PDF, from 1.
    page: int | None = None


@dataclass(frozen=True)
class DocumentText:
    """The title of a document, "" if it has none, and its sections in order."""

    title: str
    sections: list[Section]


def read(path: str, ending: str) -> list[Any]:
    """A job: returns the title and the sections of a file, as `[title, [[text, heading, page], ...]]`.

    `path` comes from `path_argument`. Raises DataError, and OSError if the file cannot be opened.
    """
    with open(path_of(path), "rb") as stream:
        document = within_limits(_read_pdf(stream) if ending == ".pdf" else _read_html(stream.read()))
    return [document.title, [[part.text, part.heading, part.page] for part in document.sections]]


def read_all(files: list[list[str]]) -> list[list[Any]]:
    """A job: reads several files, each given as a list of the arguments of `read`. For each file returns
    `["", result]`, or `[type, message]` of an exception; `OSError` stands for its subclasses."""
    results: list[list[Any]] = []
    for path, ending in files:
        try:
            results.append(["", read(path, ending)])
        except OSError as error:
            results.append(["OSError", str(error)])
        except (ValueError, RecursionError) as error:
            results.append([type(error).__name__, str(error)[:2000]])
    return results


def within_limits(document: DocumentText) -> DocumentText:
    """Return the document unchanged. Raises DataError if it has too much text or too many sections."""
    if sum(len(section.text) for section in document.sections) > MAX_CHARS:
        raise DataError(f"its text has more than {MAX_CHARS:,} characters: split it")
    if len(document.sections) > MAX_SECTIONS:
        raise DataError(f"it has more than {MAX_SECTIONS:,} sections: split it")
    return document


def _read_html(data: bytes) -> DocumentText:
    """Return the text of an HTML file, in the encoding that its first 4 KiB declare. Raises DataError."""
    declared = _CHARSET.search(data[:4096])
    return html_text(decode_text(data, declared and declared[1].decode("ascii")))


def html_text(markup: str) -> DocumentText:
    """Return the text of an HTML page. Raises DataError if Python's parser cannot read it."""
    page = _PageParser()
    try:
        page.feed(markup)
        page.close()
    # Some Python versions raise AssertionError for broken declarations. ValueError is raised for a character
    # reference with more digits than Python accepts.
    except (AssertionError, ValueError) as error:
        raise DataError(f"it is not HTML that can be read ({error}): repair it") from None
    return page.document()


def decode_text(data: bytes, encoding: str | None = None) -> str:
    """Return the text of a file in UTF-8, in UTF-16 with a byte order mark, or in the declared encoding.
    Raises DataError if it cannot be decoded."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif data.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    try:
        if encoding and codecs.lookup(encoding).name in _REFUSED_ENCODINGS:
            raise LookupError
        text = data.decode(encoding or "utf-8")
    except (UnicodeError, LookupError):
        name = encoding or "UTF-8"
        remedy = f"convert it with {ICONV}, or remove it if it is no text"
        raise DataError(f"it is not {name} text: {remedy}") from None
    if "\0" in text:  # valid UTF-8, but typical of UTF-16 without its mark, of UTF-32, and of binary files
        remedy = "convert it with `iconv -f UTF-16LE -t UTF-8 FILE > NEW`, or remove it if it is no text"
        raise DataError(f"it holds null characters, as UTF-16 and UTF-32 do: {remedy}")
    return text


class _PageParser(HTMLParser):
    """Collects the title of a page, and its text by headings."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._skipped = ""  # the name of the element whose text is currently left out
        self._depth = 0  # number of open elements of that name
        self._open_heading: list[str] | None = None  # texts of the title or heading that is being read
        self._title: list[str] = []
        self._sections: list[tuple[list[str], list[str]]] = [([], [])]  # texts of heading and body

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipped:
            self._depth += tag == self._skipped
            return
        if tag in _SKIPPED:
            self._skipped, self._depth = tag, 1
        elif tag == "title" and not self._title:
            self._open_heading = self._title
        elif tag in _HEADINGS:
            self._sections.append(([], []))
            self._open_heading = self._sections[-1][0]
        elif tag in _BREAKS:
            self.handle_data("\n")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self._skipped and tag in _BREAKS:
            self.handle_data("\n")

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            self._depth -= tag == self._skipped
            if not self._depth:
                self._skipped = ""
        elif tag in _HEADINGS or tag in ("title", "head"):
            self._open_heading = None
        elif tag in _BREAKS:
            self.handle_data("\n")

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            (self._sections[-1][1] if self._open_heading is None else self._open_heading).append(data)

    def document(self) -> DocumentText:
        """Return the title and the sections that were read. The title is by default the first heading."""
        sections = [_page_section("".join(heading), "".join(text)) for heading, text in self._sections]
        title = short_line("".join(self._title)) or next((s.heading for s in sections if s.heading), "")
        return DocumentText(title, sections)


def _page_section(heading: str, text: str) -> Section:
    """Return a section of a page. A heading that is too long, such as one without an end tag, is also in its
    text."""
    short_heading = short_line(heading)
    is_cut = len(short_heading) < len(" ".join(heading.split()))
    return Section(f"{heading}\n{text}" if is_cut else text, short_heading)


def _read_pdf(stream: BinaryIO) -> DocumentText:
    """Return the text of a PDF, with a section for each page. Raises DataError and OSError."""
    try:
        import pypdf
    except ImportError:
        from rag_r1.system.installation import pip_command

        raise DataError(f"PDFs need pypdf: {pip_command('documents')}") from None
    # pypdf's warnings are irrelevant if the text can be read, and part of the error otherwise.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = pypdf.PdfReader(stream)
        if reader.is_encrypted and not reader.decrypt(""):
            raise DataError("it is encrypted: store it without a password")
        title = short_line(str((reader.metadata and reader.metadata.title) or ""))
        sections = list(_pages(reader))
    except (DataError, OSError):
        raise
    except Exception as error:  # a broken file can raise anything in pypdf, also RecursionError
        raise DataError(f"pypdf cannot read it ({type(error).__name__}: {error}): save it again") from None
    if not any(section.text.strip() for section in sections):
        raise DataError("its pages have no text, only pictures: run OCR over it, e.g. with ocrmypdf")
    return DocumentText(title, sections)


def _pages(reader: Any) -> Iterator[Section]:
    """Yield the pages of a PDF. Raises DataError if they have too much text."""
    characters_left = MAX_CHARS
    for number, page in enumerate(reader.pages, 1):
        text = page.extract_text() or ""
        characters_left -= len(text)
        if characters_left < 0:
            raise DataError(f"its text has more than {MAX_CHARS:,} characters: split it")
        yield Section(text, page=number)


def short_line(text: str) -> str:
    """Return a title or heading on one line, cut to _MAX_HEADING_CHARS."""
    return " ".join(text.split())[:_MAX_HEADING_CHARS]
