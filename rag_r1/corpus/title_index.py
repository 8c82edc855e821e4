"""Looks up page titles in a corpus, as written and in variants.

How a title of the data matches one of the corpus, the best first:

    exact            the same characters
    unicode          the same after NFKC and NFC, with one kind of dash, of quotes and of blank
    underscores      the same if `_` is a blank, as in addresses
    case             the same but for case, if one of the two has been lower-cased or upper-cased as a whole,
                     or only the first letters differ (MediaWiki does not distinguish these)
    redirect         a redirect leads from it to a title that matches in one of these ways

    mixed_case       the same but for case inside: "Popular Science" and "Popular science" are two pages
    diacritics       the same without diacritics
    suffix           the same without a last part in parentheses: "Heat" and "Heat (1995 film)"
    redirected_from  a redirect leads to it from a title of the corpus: perhaps an older name

The first five say that the page is there. The others are weak: the page may be another one.

Titles of the corpus are added one after the other. Each is looked up once, under a key that is equal for all
variants, so the work does not grow with the number of titles of the data.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

STRONG = ("exact", "unicode", "underscores", "case", "redirect")
WEAK = ("mixed_case", "diacritics", "suffix", "redirected_from")
LEVELS = (*STRONG, *WEAK)
_RANK = {level: rank for rank, level in enumerate(LEVELS)}

#: Characters that NFKC keeps apart, though writers use them for one another.
_ALIKE = {
    **dict.fromkeys("“”„‟«»", '"'),
    **dict.fromkeys("‘’‚‛ʼ`′ʻ", "'"),
    **dict.fromkeys("‐‑‒–—―−", "-"),
    **dict.fromkeys("\u00ad\u200b\u2060\ufeff\u200e\u200f\u202a\u202b\u202c\u202d\u202e", ""),
}
_IS_ALIKE = re.compile(f"[{''.join(_ALIKE)}]")
#: Letters with a stroke or joined ones, which Unicode does not decompose; after casefold().
_BARE = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th", "ŧ": "t"}
)
_SUFFIX = re.compile(r"(?<=\S)\s*\([^()]*\)\s*$")


def unicode_normalised(text: str) -> str:
    """The text in one Unicode form, with blanks folded; the level `unicode` compares it."""
    if not text.isascii():
        text = _IS_ALIKE.sub(lambda match: _ALIKE[match[0]], unicodedata.normalize("NFKC", text))
        # Where a character without width was, a letter and its accent may meet.
        text = unicodedata.normalize("NFC", text)
    else:
        text = text.replace("`", "'")
    return " ".join(text.split())


def without_underscores(text: str) -> str:
    """`unicode_normalised`, with blanks for underscores; the level `underscores` compares it."""
    return " ".join(unicode_normalised(text).replace("_", " ").split())


def case_folded(text: str) -> str:
    """`without_underscores`, and without case; the levels `case` and `mixed_case` compare it."""
    text = without_underscores(text)
    return text.lower() if text.isascii() else unicodedata.normalize("NFC", text.casefold())


def without_diacritics(text: str) -> str:
    """`case_folded`, and without diacritics; the level `diacritics` compares it."""
    text = case_folded(text)
    if text.isascii():
        return text
    marked = unicodedata.normalize("NFD", text.translate(_BARE))
    return "".join(character for character in marked if unicodedata.category(character) != "Mn")


@lru_cache(maxsize=4096)
def key_of(text: str) -> str:
    """`without_diacritics`, and without a last part in parentheses: equal for all variants of a title."""
    return _SUFFIX.sub("", without_diacritics(text)) or without_diacritics(text)


def level_of(first: str, second: str) -> str | None:
    """The best level on which two titles match, redirects left aside; None if they do not match."""
    if first == second:
        return "exact"
    if key_of(first) != key_of(second):
        return None
    if unicode_normalised(first) == unicode_normalised(second):
        return "unicode"
    a, b = without_underscores(first), without_underscores(second)
    if a == b:
        return "underscores"
    if case_folded(first) == case_folded(second):
        has_one_case = any(text in (text.lower(), text.upper()) for text in (a, b))
        return "case" if has_one_case or a[1:] == b[1:] else "mixed_case"
    return "diacritics" if without_diacritics(first) == without_diacritics(second) else "suffix"


class TitleIndex:
    """The titles that the questions need, and the best match of each so far. First come the redirects, if
    there are any (`add_redirects`), then the titles of the corpus (`note`)."""

    def __init__(self, titles: Iterable[str]):
        self.titles = list(dict.fromkeys(titles))
        #: Title -> (level, the title in the corpus).
        self.matches: dict[str, tuple[str, str]] = {}
        #: Key -> (title, its name in the corpus, the level if that is by a redirect).
        self._names: dict[str, list[tuple[str, str, str | None]]] = defaultdict(list)
        self._redirects: list[tuple[str, str, str]] = []
        self._last_page: str | None = None
        for title in self.titles:
            self._names[key_of(title)].append((title, title, None))

    def add_redirects(self, pairs: Iterable[tuple[str, str]]) -> int:
        """Take redirects (from, to) into account; those of other titles are ignored, so the pairs may be
        those of a whole Wikipedia. Returns how many are used. Call it once, before `note`."""
        for source, target in pairs:
            for page, alias, level in ((source, target, "redirect"), (target, source, "redirected_from")):
                for title, name, _ in self._names.get(key_of(page), ()):
                    if level_of(name, page) in STRONG and level_of(name, alias) not in STRONG:
                        self._redirects.append((title, alias, level))
        # Only now, so that a redirect does not lead on to another one.
        for title, name, level in self._redirects:
            self._names[key_of(name)].append((title, name, level))
        return len(self._redirects)

    def note(self, page: str) -> None:
        """Compare a title of the corpus with those of the questions, and keep a better match."""
        if page == self._last_page:  # the passages of a page stand together
            return
        self._last_page = page
        for title, name, redirected in self._names.get(key_of(page), ()):
            level = level_of(name, page)
            if redirected is not None:
                level = redirected if level in STRONG else None
            if level and (title not in self.matches or _RANK[level] < _RANK[self.matches[title][0]]):
                self.matches[title] = (level, page)

    def level(self, title: str) -> str | None:
        """The level of a title's best match; None if there is none."""
        return self.matches[title][0] if title in self.matches else None

    def names(self) -> list[list[str]]:
        """[title] for each title, and [title, alias, level] for each redirect; for the fingerprint of a
        scan."""
        return [[title] for title in self.titles] + [list(redirect) for redirect in self._redirects]
