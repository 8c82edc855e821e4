"""Finds links between passages of different documents, from which chains for multi-hop questions are made.

    title   the passage mentions the title of the other document
    url     the passage contains the URL of the other document
    name    both passages contain a rare name, and the title of the first one does not contain it

Parentheses at the end of a title, as in `Alien (film)`, are removed before the title is looked for. A title
that two documents then share gives no link, since the mention would be ambiguous. A possessive, as in
`Torval's`, is another word than the name, and so is no mention of it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rag_r1.data.evidence import base_title
from rag_r1.questions.passages.documents import PassagePool, SourcePassage

#: A name that more passages than this contain is too common to link them.
MAX_SHARING = 4
#: Longer titles, in words, are not looked for.
_MAX_WORDS = 6
_WORD = re.compile(r"\w[\w'’.\-]*\w|\w")
#: Two or more capitalised words. Their length is limited, since a long word with many hyphens, which may be
#: hostile, would be read to its end from each of them.
_NAME = re.compile(r"\b[A-ZÀ-ÖØ-Þ][\w'’\-]{1,40}(?: [A-ZÀ-ÖØ-Þ][\w'’\-]{1,40})+")
#: A URL. A closing parenthesis belongs to it only if the opening one does, as in `/wiki/Alien_(film)`.
_URL = re.compile(r"https?://(?:\([^\s<>\"'()\]]*\)|[^\s<>\"')\]])+")


@dataclass(frozen=True)
class Link:
    """A link from a passage to another one."""

    #: Id of the passage to which the link leads.
    target: str
    kind: Literal["title", "url", "name"]


class Links:
    """Finds the links of the passages in a pool."""

    def __init__(self, pool: PassagePool):
        self.pool = pool
        self._documents_by_title: dict[str, set[str]] = defaultdict(set)
        self._passage_by_url: dict[str, SourcePassage] = {}
        self._ids_by_name: dict[str, set[str]] = defaultdict(set)
        for passage in pool.passages:
            if passage.title and (key := _title_key(base_title(passage.title))):
                self._documents_by_title[key].add(passage.document)
            if passage.url:
                self._passage_by_url.setdefault(passage.url, passage)
            for name in set(_NAME.findall(passage.contents)):
                self._ids_by_name[name].add(passage.id)

    def of(self, passage: SourcePassage) -> list[Link]:
        """Return the links from a passage.

        Each target occurs once; if several kinds of links lead to it, titles take precedence over URLs, and
        URLs over names.
        """
        links: dict[str, Link] = {}
        for kind, find_targets in (("title", self._by_title), ("url", self._by_url), ("name", self._by_name)):
            for target in find_targets(passage):
                if target.document != passage.document:
                    links.setdefault(target.id, Link(target.id, kind))
        return list(links.values())

    def _by_title(self, passage: SourcePassage) -> Iterator[SourcePassage]:
        """Yield the first passages of the documents whose titles the passage mentions."""
        for mention in _mentions(passage.contents):
            documents = self._documents_by_title.get(mention, ())
            if len(documents) == 1:
                yield self.pool.first_passages[next(iter(documents))]

    def _by_url(self, passage: SourcePassage) -> Iterator[SourcePassage]:
        """Yield the passages whose URLs the passage contains."""
        for url in _URL.findall(passage.contents):
            if target := self._passage_by_url.get(url.rstrip(".,;")):
                yield target

    def _by_name(self, passage: SourcePassage) -> Iterator[SourcePassage]:
        """Yield the passages that share a rare name with the passage, which may include itself."""
        for name in dict.fromkeys(_NAME.findall(passage.contents)):
            ids = self._ids_by_name.get(name, ()) if name not in passage.title else ()
            if 1 < len(ids) <= MAX_SHARING:
                yield from (self.pool.by_id[passage_id] for passage_id in sorted(ids))


def _title_key(title: str) -> str:
    """Return a title in the form in which `_mentions` yields it.

    The result is empty if the title has no word or too many, or is a single word that is short or does not
    begin with a capital.
    """
    words = _WORD.findall(title)
    is_distinctive = len(words) > 1 or (len(title) > 4 and title[:1].isupper())
    return " ".join(words) if words and len(words) <= _MAX_WORDS and is_distinctive else ""


def _mentions(text: str) -> Iterator[str]:
    """Yield the runs of up to `_MAX_WORDS` words that begin with a capital or a digit, and may be titles.

    The first word of a sentence is not yielded by itself, since it has a capital in any case.
    """
    matches = list(_WORD.finditer(text))
    for first, match in enumerate(matches):
        if not (match[0][0].isupper() or match[0][0].isdigit()):
            continue
        words = [word[0] for word in matches[first : first + _MAX_WORDS]]
        before = text[max(0, match.start() - 4) : match.start()]
        begins_sentence = re.search(r"(?:^|[.!?\n\"])\s*$", before)
        for count in range(2 if begins_sentence else 1, len(words) + 1):
            yield " ".join(words[:count])
