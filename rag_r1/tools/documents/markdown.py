"""Divides a Markdown text into sections at its headings.

Only what this requires is parsed: headings that begin with #, and fenced blocks of code, in which a # is a
comment. Both are those of CommonMark, except that a fence may be indented by any number of spaces. The rest
of a section is kept as it is written.
"""

from __future__ import annotations

import re

from rag_r1.io.errors import DataError
from rag_r1.sandbox.documents import MAX_SECTIONS, DocumentText, Section, short_line

#: Most lines of a Markdown file, since each line is an object while the file is read.
MAX_LINES = 1_000_000
#: The characters at which str.splitlines cuts; it takes `\r\n` as one end.
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"

#: A heading. In CommonMark up to three spaces may precede it; a line with more of them is code.
_HEADING = re.compile(r" {0,3}#{1,6}\s+(\S.*)")
#: The beginning of a fenced block of code. In CommonMark no backtick follows a fence of backticks. Up to
#: three spaces may precede it, but more if it is in a list; lists are not parsed here, so any number may.
_FENCE = re.compile(r"\s*(`{3,}(?=[^`]*$)|~{3,})")


def markdown_sections(text: str) -> DocumentText:
    """Return the sections of a Markdown text; the title of the document is its first heading.

    Raises DataError if the text has too many lines or sections.
    """
    if sum(map(text.count, _LINE_ENDS)) - text.count("\r\n") > MAX_LINES:
        raise DataError(f"it has more than {MAX_LINES:,} lines: split it")
    sections: list[tuple[str, list[str]]] = [("", [])]
    fence = ""  # the characters that began the current block of code
    for line in text.splitlines():
        if not fence:
            fence = match[1] if (match := _FENCE.match(line)) else ""
        elif _closes(line, fence):
            fence = ""
        heading = None if fence else _HEADING.fullmatch(line)
        if heading:
            if len(sections) == MAX_SECTIONS:
                raise DataError(f"it has more than {MAX_SECTIONS:,} sections: split it")
            sections.append((short_line(_without_closing_marks(heading[1])), []))
        else:
            sections[-1][1].append(line)
    title = next((heading for heading, _ in sections if heading), "")
    return DocumentText(title, [Section("\n".join(lines), heading) for heading, lines in sections])


def _closes(line: str, fence: str) -> bool:
    """Return whether a line ends a block of code: it has only the character of the fence that began the
    block, at least as often."""
    mark = line.strip()
    return mark.startswith(fence) and not mark.strip(fence[0])


def _without_closing_marks(heading: str) -> str:
    """Return a heading without the marks that close it. In CommonMark these must follow white space: `Tides
    ##` becomes `Tides`, but `C#` stays `C#`."""
    heading = heading.rstrip()
    title = heading.rstrip("#")
    return title.rstrip() if not title or title[-1].isspace() else heading
