"""Converts titles and snippets of search engines to plain text on one line.

Only the names of HTML elements count as tags, so that `List<String>` and `a < b` are kept. The text is
processed in a single pass, so that a hostile page can make a snippet ugly but not slow.
"""

from __future__ import annotations

import html
import re

_TAG = re.compile(r"</?([a-z][a-z0-9]*)(?:[\s/][^<>]*)?>", re.IGNORECASE)
#: Elements that separate words.
_BREAKS = frozenset("br p div li td th tr h1 h2 h3 h4 h5 h6 dd dt hr ul ol table section".split())
#: Elements that do not separate words: inline elements, and those that contain whole blocks.
_INLINE = frozenset(
    (
        "a abbr article aside b bdi bdo blockquote body button caption center cite code col del details dfn "
        "dl em embed figcaption figure font footer form head header html i iframe img input ins kbd label "
        "legend link main mark meta nav noscript object option picture pre q s samp script select small "
        "source span strike strong style sub summary sup svg tbody template textarea tfoot thead time title "
        "tt u var video wbr"
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
