"""Converts titles and snippets of search engines to plain text on one line.

Only the HTML elements below count as tags, so that `List<String>`, `List<Address>` and `a < b` are kept.
The text is processed in a single pass, so that a hostile page can make a snippet ugly but not slow.
"""

from __future__ import annotations

import html
import re

_TAG = re.compile(r"</?([a-z][a-z0-9]*)(?:[\s/][^<>]*)?>", re.IGNORECASE)
#: Elements that separate words: blocks, cells and items.
_BREAKS = frozenset(
    (
        "article aside blockquote body br button caption center dd details div dl dt fieldset figcaption "
        "figure footer form h1 h2 h3 h4 h5 h6 head header hr iframe legend li main nav object ol option p "
        "pre script section select style summary table tbody td tfoot th thead title tr ul video"
    ).split()
)
#: Elements within a line, which may begin or end inside a word.
_INLINE = frozenset(
    (
        "a abbr b bdi bdo big cite code col del dfn em embed font html i img input ins kbd label link mark "
        "meta noscript picture q rp rt ruby s samp small source span strike strong sub sup svg template time "
        "tt u var wbr"
    ).split()
)
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f\ud800-\udfff]")


def plain_text(marked_up: str) -> str:
    """Return the text of a title or snippet on one line, without tags, entities and repeated white space."""
    text = _CONTROL.sub("\ufffd", html.unescape(_TAG.sub(_replacement, marked_up)))
    return " ".join(text.split())


def document_contents(title: str, snippet: str) -> str:
    """Return a document in the format of the corpora: the title in quotes, a line break, and the text."""
    return f'"{plain_text(title)}"\n{plain_text(snippet)}'


def _replacement(tag: re.Match[str]) -> str:
    """Return the replacement of a tag: a blank, nothing, or the tag itself if it is not HTML."""
    name = tag[1].lower()
    if name in _BREAKS:
        return " "
    return "" if name in _INLINE else tag[0]
