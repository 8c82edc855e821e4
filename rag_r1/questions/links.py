"""Links between passages of different documents, along which a question can go from one to the next.

    title   a passage names the title of another document
    url     a passage links to the address of another document
    name    two passages share a name that few have, and that is not what the first is about

A title with parentheses at its end, `Alien (film)`, is looked for without them; one that two documents then
have gives no link by title.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from rag_r1.data.evidence import base_title
from rag_r1.questions.documents import PassagePool, SourcePassage

#: Most passages that share a name: a name that more passages have says little.
MAX_SHARING = 4
#: Most words of a title that is looked for in texts.
_MAX_WORDS = 6
_WORD = re.compile(r"\w[\w'’.\-]*\w|\w")
_NAME = re.compile(r"\b[A-ZÀ-ÖØ-Þ][\w'’\-]+(?: [A-ZÀ-ÖØ-Þ][\w'’\-]+)+")
_ADDRESS = re.compile(r"https?://[^\s<>\"')\]]+")


@dataclass(frozen=True)
class Link:
    """A link of a passage to another one; `how`: `title`, `url`, `name` or `similar`."""

    target: str
    how: str


class Links:
    """Finds the links of the passages in a pool."""

    def __init__(self, pool: PassagePool):
        self.pool = pool
        self._by_title: dict[str, set[str]] = defaultdict(set)
        self._by_url: dict[str, SourcePassage] = {}
        self._sharing: dict[str, set[str]] = defaultdict(set)
        for passage in pool.passages:
            if passage.title and (key := _key(base_title(passage.title))):
                self._by_title[key].add(passage.document)
            if passage.url:
                self._by_url.setdefault(passage.url, passage)
            for name in set(_NAME.findall(passage.contents)):
                self._sharing[name].add(passage.id)

    def of(self, passage: SourcePassage) -> list[Link]:
        """The links of a passage, each target once, by the first of the three ways."""
        way_by_target: dict[str, str] = {}
        ways = (("title", self._titles), ("url", self._urls), ("name", self._names))
        for how, targets in ways:
            for target in targets(passage):
                if target.document != passage.document:
                    way_by_target.setdefault(target.id, how)
        return [Link(target, how) for target, how in way_by_target.items()]

    def _titles(self, passage: SourcePassage) -> Iterator[SourcePassage]:
        for mention in _mentions(passage.contents):
            documents = self._by_title.get(mention, ())
            if len(documents) == 1:
                yield self.pool.first_passages[next(iter(documents))]

    def _urls(self, passage: SourcePassage) -> Iterator[SourcePassage]:
        for address in _ADDRESS.findall(passage.contents):
            if target := self._by_url.get(address.rstrip(".,;")):
                yield target

    def _names(self, passage: SourcePassage) -> Iterator[SourcePassage]:
        for name in dict.fromkeys(_NAME.findall(passage.contents)):
            sharing = self._sharing[name] if name not in passage.title else ()
            if 1 < len(sharing) <= MAX_SHARING:
                yield from (self.pool.by_id[name_id] for name_id in sorted(sharing))


def _key(title: str) -> str:
    """A title in the form of `_mentions`; empty for one that is too long, or a single short word."""
    words = _WORD.findall(title)
    is_telling = len(words) > 1 or (len(title) > 4 and title[:1].isupper())
    return " ".join(words) if words and len(words) <= _MAX_WORDS and is_telling else ""


def _mentions(text: str) -> Iterator[str]:
    """The runs of up to six words of a text that begin with a capital or a digit; of single words not the
    first of a sentence, whose capital says nothing."""
    matches = list(_WORD.finditer(text))
    for first, match in enumerate(matches):
        if not (match[0][0].isupper() or match[0][0].isdigit()):
            continue
        words = [word[0] for word in matches[first : first + _MAX_WORDS]]
        begins = re.search(r"(?:^|[.!?\n\"])\s*$", text[max(0, match.start() - 4) : match.start()])
        for count in range(2 if begins else 1, len(words) + 1):
            yield " ".join(words[:count])
