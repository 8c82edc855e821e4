"""Looks up page titles in a corpus, as they are written and in variants.

A title in the data can match a title in the corpus on one of these levels, the best first:

    exact            the same characters
    unicode          the same after NFKC and NFC, with one kind of dash, quotation mark and space
    underscores      the same if `_` counts as a space, as in web addresses
    case             the same except for case, if one of the two is all lower case or all upper case, or if
                     only the first letters differ (MediaWiki does not distinguish these)
    redirect         the title redirects to one that matches on one of the levels above

    mixed_case       the same except for case inside: "Popular Science" and "Popular science" are two pages
    diacritics       the same without diacritics
    suffix           the same without a final part in parentheses: "Heat" and "Heat (1995 film)"
    redirected_from  a title in the corpus redirects to it, and may be an older name of the page

The first five levels prove that the page is in the corpus. The others are weak: it may be another page.

The titles of the corpus are added one after the other. Each is looked up once, under a key that is equal for
all variants, so the time per title does not depend on the number of titles in the data.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from rag_r1.data.files.duplicates import ALIKE

#: Levels that prove that the page is in the corpus, and those that do not, the best first.
STRONG = ("exact", "unicode", "underscores", "case", "redirect")
WEAK = ("mixed_case", "diacritics", "suffix", "redirected_from")
LEVELS = (*STRONG, *WEAK)
_RANK = {level: rank for rank, level in enumerate(LEVELS)}

#: Characters that NFKC keeps apart although they are used interchangeably, and the replacement of each.
_ALIKE = {**ALIKE, **dict.fromkeys("‘’‚‛ʼ`′ʻ", "'")}
_IS_ALIKE = re.compile(f"[{''.join(_ALIKE)}]")
#: Plain forms of letters with a stroke and of ligatures, which Unicode does not decompose; after casefold().
_BARE = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th", "ŧ": "t"}
)
_SUFFIX = re.compile(r"(?<=\S)\s*\([^()]*\)\s*$")


def unicode_normalised(text: str) -> str:
    """Return the text in one Unicode form with white space folded, as compared on the level `unicode`."""
    if not text.isascii():
        text = _IS_ALIKE.sub(lambda match: _ALIKE[match[0]], unicodedata.normalize("NFKC", text))
        # A letter and its accent may have been separated by a removed zero-width character.
        text = unicodedata.normalize("NFC", text)
    else:
        text = text.replace("`", "'")
    return " ".join(text.split())


def without_underscores(text: str) -> str:
    """Return `unicode_normalised` with spaces for underscores, as compared on the level `underscores`."""
    return " ".join(unicode_normalised(text).replace("_", " ").split())


def case_folded(text: str) -> str:
    """Return `without_underscores` without case, as compared on the levels `case` and `mixed_case`."""
    text = without_underscores(text)
    return text.lower() if text.isascii() else unicodedata.normalize("NFC", text.casefold())


def without_diacritics(text: str) -> str:
    """Return `case_folded` without diacritics, as compared on the level `diacritics`."""
    text = case_folded(text)
    if text.isascii():
        return text
    marked = unicodedata.normalize("NFD", text.translate(_BARE))
    return "".join(character for character in marked if unicodedata.category(character) != "Mn")


@lru_cache(maxsize=4096)
def key_of(text: str) -> str:
    """Return `without_diacritics` without a final part in parentheses; equal for all variants of a title."""
    return _SUFFIX.sub("", without_diacritics(text)) or without_diacritics(text)


def level_of(first: str, second: str) -> str | None:
    """Return the best level on which two titles match without redirects, or None if they do not match."""
    if first == second:
        return "exact"
    if key_of(first) != key_of(second):
        return None
    if unicode_normalised(first) == unicode_normalised(second):
        return "unicode"
    texts = without_underscores(first), without_underscores(second)
    if texts[0] == texts[1]:
        return "underscores"
    if case_folded(first) == case_folded(second):
        has_one_case = any(text in (text.lower(), text.upper()) for text in texts)
        return "case" if has_one_case or texts[0][1:] == texts[1][1:] else "mixed_case"
    return "diacritics" if without_diacritics(first) == without_diacritics(second) else "suffix"


class _PageName(NamedTuple):
    """A name under which the page of a title may be in the corpus."""

    #: The title of the questions.
    title: str
    #: The title itself, or another name of its page.
    name: str
    #: The level of a match with another name, from a redirect; None for the title itself.
    level: str | None = None


class TitleIndex:
    """The titles that the questions need, and the best match of each so far. Call `add_redirects` first, if
    there are redirects, and then `note` for each title of the corpus."""

    def __init__(self, titles: Iterable[str]):
        #: The titles of the questions, each once.
        self.titles = list(dict.fromkeys(titles))
        #: Maps each matched title to the level and to the title in the corpus.
        self.matches: dict[str, tuple[str, str]] = {}
        #: Maps a key to the names with this key.
        self._names: dict[str, list[_PageName]] = defaultdict(list)
        #: The names that redirects add.
        self._redirects: list[_PageName] = []
        #: The title that `note` compared last.
        self._last_page: str | None = None
        for title in self.titles:
            self._names[key_of(title)].append(_PageName(title, title))

    def add_redirects(self, pairs: Iterable[tuple[str, str]]) -> int:
        """Add redirects (from, to) and return how many of them concern the titles. The others are ignored, so
        the pairs may be those of a whole Wikipedia. Call this once, before `note`."""
        for source, target in pairs:
            for page, alias, level in ((source, target, "redirect"), (target, source, "redirected_from")):
                for title, name, _ in self._names.get(key_of(page), ()):
                    if level_of(name, page) in STRONG and level_of(name, alias) not in STRONG:
                        self._redirects.append(_PageName(title, alias, level))
        # Not in the loop above, where they would make chains of redirects.
        for redirect in self._redirects:
            self._names[key_of(redirect.name)].append(redirect)
        return len(self._redirects)

    def note(self, page: str) -> None:
        """Compare a title of the corpus with those of the questions, and keep each match that is better than
        the best one so far."""
        if page == self._last_page:  # the passages of a page usually follow each other
            return
        self._last_page = page
        for title, name, redirect_level in self._names.get(key_of(page), ()):
            level = level_of(name, page)
            if redirect_level is not None:
                level = redirect_level if level in STRONG else None
            if level and (title not in self.matches or _RANK[level] < _RANK[self.matches[title][0]]):
                self.matches[title] = (level, page)

    def level(self, title: str) -> str | None:
        """Return the level of a title's best match so far, or None if there is no match."""
        return self.matches[title][0] if title in self.matches else None

    def names(self) -> list[list[str]]:
        """Return [title] for each title and [title, name, level] for each redirect, for the fingerprint of a
        scan."""
        return [[title] for title in self.titles] + [list(redirect) for redirect in self._redirects]
