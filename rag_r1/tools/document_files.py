"""The text of a document's file, in sections: plain text, Markdown, HTML and PDF.

The name's ending gives the format. A section is what a passage should not cross: a page of a PDF, the text
under a heading of a Markdown or HTML file, or a whole plain text. What a file holds is data: of a page,
scripts, styles and comments are left out, nothing is fetched, and no markup survives.

A file that cannot be read raises `UnreadableFile`, which says why and what to do. HTML is read with the
standard library's parser, PDF with pypdf, which is imported only if there is a PDF
(`pip install 'rag-r1[documents]'`). Scanned pages have no text: run OCR over them first.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

#: Largest file that is read, in bytes: texts are in memory as a whole.
MAX_FILE_BYTES = 256 << 20
#: Most text of one file, in characters; a small PDF can unpack to gigabytes.
MAX_CHARS = 16 << 20

_HEADING = re.compile(r"#{1,6}\s+(\S.*)")
_FENCE = re.compile(r"\s*(```|~~~)")
_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
#: Elements whose text is not the page's.
_UNREAD = {"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "canvas", "select"}
#: Elements after which a word ends.
_BREAKS = set(
    "address article aside blockquote br caption dd div dl dt fieldset figcaption figure footer form header "
    "hr li main nav ol option p pre section table tbody td tfoot th thead tr ul".split()
)
#: Encodings that Python knows and no page has. To decode them takes time that grows with the square.
_NOT_OF_PAGES = {"idna", "punycode"}
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}


class UnreadableFile(ValueError):
    """A file that cannot be read; the message says why and names a remedy."""


@dataclass(frozen=True)
class Section:
    """A part of a document: its heading, if it has one, its text, and the number of its page, from 1."""

    text: str
    heading: str = ""
    page: int | None = None


@dataclass(frozen=True)
class DocumentText:
    """A document's title, empty if it has none, and its sections, in order."""

    title: str
    sections: list[Section]


def read_document(path: Path) -> DocumentText:
    """The text of a file. Raises UnreadableFile, and OSError if it cannot be opened."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UnreadableFile(f"its name must end in one of {', '.join(READERS)}")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise UnreadableFile(f"it has more than {MAX_FILE_BYTES >> 20} MiB: split it")
    document = reader(path)
    if sum(len(section.text) for section in document.sections) > MAX_CHARS:
        raise UnreadableFile(f"its text has more than {MAX_CHARS:,} characters: split it")
    return document


def _plain(path: Path) -> DocumentText:
    return DocumentText("", [Section(_decoded(path.read_bytes()))])


def _markdown(path: Path) -> DocumentText:
    """Sections begin at headings, except those inside a fenced block of code."""
    found: list[tuple[str, list[str]]] = [("", [])]
    fence = None
    for line in _decoded(path.read_bytes()).splitlines():
        mark = _FENCE.match(line)
        if mark and fence in (None, mark[1]):
            fence = None if fence else mark[1]
        heading = None if fence else _HEADING.fullmatch(line)
        if heading:
            found.append((_line(_without_closing_marks(heading[1])), []))
        else:
            found[-1][1].append(line)
    title = next((heading for heading, _ in found if heading), "")
    return DocumentText(title, [Section("\n".join(lines), heading) for heading, lines in found])


def _without_closing_marks(heading: str) -> str:
    """`Tides` of `Tides ##`, but `C#` of `C#`: only marks after white space close a heading (CommonMark)."""
    heading = heading.rstrip()
    left = heading.rstrip("#")
    return left.rstrip() if not left or left[-1].isspace() else heading


def _html(path: Path) -> DocumentText:
    return html_text(_decoded(data := path.read_bytes(), _declared(data)))


def html_text(markup: str) -> DocumentText:
    """The text of a page. Raises UnreadableFile for markup that Python's parser does not read."""
    page = _Page()
    try:
        page.feed(markup)
        page.close()
    # AssertionError: of some Python versions, for broken declarations. ValueError: a character's number of
    # more digits than Python reads.
    except (AssertionError, ValueError) as error:
        raise UnreadableFile(f"it is no HTML that can be read ({error}): repair it") from None
    return page.document()


def _declared(data: bytes) -> str | None:
    """The encoding that an HTML page names in its first kilobytes."""
    named = _CHARSET.search(data[:4096])
    return named[1].decode("ascii") if named else None


def _decoded(data: bytes, encoding: str | None = None) -> str:
    """The text of a file: UTF-8, UTF-16 with its mark, or the encoding that the file names."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif data.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    try:
        if encoding and codecs.lookup(encoding).name in _NOT_OF_PAGES:
            raise LookupError
        return data.decode(encoding or "utf-8")
    except (UnicodeError, LookupError):
        name = encoding or "UTF-8"
        raise UnreadableFile(f"it is not {name} text: convert it with `iconv -t UTF-8`") from None


class _Page(HTMLParser):
    """Collects a page's title and its text by headings."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._unread = ""  # the element whose text is being left out
        self._depth = 0
        self._into: list[str] | None = None  # the title or a heading that is being read
        self._title: list[str] = []
        self._found: list[tuple[list[str], list[str]]] = [([], [])]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._unread:
            self._depth += tag == self._unread
            return
        if tag in _UNREAD:
            self._unread, self._depth = tag, 1
        elif tag == "title" and not self._title:
            self._into = self._title
        elif tag in _HEADINGS:
            self._found.append(([], []))
            self._into = self._found[-1][0]
        elif tag in _BREAKS:
            self.handle_data("\n")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self._unread and tag in _BREAKS:
            self.handle_data("\n")

    def handle_endtag(self, tag: str) -> None:
        if self._unread:
            self._depth -= tag == self._unread
            if not self._depth:
                self._unread = ""
        elif tag in _HEADINGS or tag in ("title", "head"):
            self._into = None
        elif tag in _BREAKS:
            self.handle_data("\n")

    def handle_data(self, data: str) -> None:
        if not self._unread:
            (self._found[-1][1] if self._into is None else self._into).append(data)

    def document(self) -> DocumentText:
        sections = [Section("".join(text), _line("".join(heading))) for heading, text in self._found]
        title = _line("".join(self._title)) or next((s.heading for s in sections if s.heading), "")
        return DocumentText(title, sections)


def _pdf(path: Path) -> DocumentText:
    try:
        import pypdf
    except ImportError:
        raise UnreadableFile("PDFs need pypdf: pip install 'rag-r1[documents]'") from None
    # What it warns of is told here once, as the file's error, or is of no interest: the text was read.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = pypdf.PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableFile("it is encrypted: store it without a password")
        title = _line(str((reader.metadata and reader.metadata.title) or ""))
        sections = list(_pages(reader))
    except (UnreadableFile, OSError):
        raise
    except Exception as error:  # a broken file can raise anything in pypdf, also RecursionError
        raise UnreadableFile(f"it is no PDF that pypdf can read ({type(error).__name__}: {error})") from None
    if not any(section.text.strip() for section in sections):
        raise UnreadableFile("its pages have no text, only pictures: run OCR over it, e.g. with ocrmypdf")
    return DocumentText(title, sections)


def _pages(reader: Any) -> Iterator[Section]:
    left = MAX_CHARS
    for number, page in enumerate(reader.pages, 1):
        text = page.extract_text() or ""
        left -= len(text)
        if left < 0:
            raise UnreadableFile(f"its text has more than {MAX_CHARS:,} characters: split it")
        yield Section(text, page=number)


def _line(text: str) -> str:
    """A text as one line of at most 200 characters."""
    return " ".join(text.split())[:200]


#: Ending of a file's name -> its reader.
READERS: dict[str, Callable[[Path], DocumentText]] = {
    ".txt": _plain,
    ".md": _markdown,
    ".markdown": _markdown,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
}
