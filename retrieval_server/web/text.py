"""From what a search engine shows to plain text: no markup, no entities, one line.

Only names that are HTML elements count as tags, so that ``List<String>`` and ``a < b`` survive. One pass
from left to right, so a hostile page can make a snippet ugly but not slow.
"""

from __future__ import annotations

import html
import re

_ELEMENTS = (
    "a abbr article aside b bdi bdo blockquote body br button caption center cite code col dd del details "
    "dfn div dl dt em embed figcaption figure font footer form h1 h2 h3 h4 h5 h6 head header hr html i "
    "iframe img input ins kbd label legend li link main mark meta nav noscript object ol option p picture "
    "pre q s samp script section select small source span strike strong style sub summary sup svg table "
    "tbody td template textarea tfoot th thead time title tr tt u ul var video wbr"
)
_TAG = re.compile(rf"</?(?:{'|'.join(_ELEMENTS.split())})(?:[\s/][^<>]*)?>", re.IGNORECASE)
# Elements that stand between words; the others (<b>, <em>) stand within them.
_BREAK = re.compile(r"</?(?:br|p|div|li|td|th|tr|h[1-6]|dd|dt|hr|ul|ol|table|section)\b", re.IGNORECASE)
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f\ud800-\udfff]")


def plain_text(marked_up: str) -> str:
    """The text of a title or snippet on one line: tags removed, entities resolved, white space collapsed."""
    text = _TAG.sub(lambda tag: " " if _BREAK.match(tag[0]) else "", marked_up)
    text = _CONTROL.sub("\ufffd", html.unescape(text))
    return " ".join(text.split())


def contents(title: str, snippet: str) -> str:
    """A document in the convention of the corpora: the title in quotes, a line break, the text."""
    return f'"{plain_text(title)}"\n{plain_text(snippet)}'
