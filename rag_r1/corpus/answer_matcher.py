"""Matches all gold answers against passages in one pass.

Texts become tokens: lower case, one Unicode form, runs of letters and digits; characters of scripts without
blanks (Chinese, Japanese, Thai) are tokens of their own; "1,000" is one token, and so are initials ("J. K.",
"U.S."); articles are left out, as in the metrics. An answer stands in a text if its tokens follow each other
there. All answers are in one hash table, and at every token of a text only those lengths are looked up that
answers beginning with this token have: the time is linear in the text and does not grow with the number of
answers.

An answer string proves little where it is short or a number: `weak_reason` says which ones.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from rag_r1.corpus.title_index import unicode_normalised

#: Answers with more tokens are sentences and are not looked for: no other text has their words.
MAX_TOKENS = 32
#: An answer that stands in more passages than this share of all, and than `MIN_COMMON`, says nothing.
COMMON_SHARE, MIN_COMMON = 1e-3, 20

YES_NO = frozenset({"yes", "no", "true", "false", "noanswer"})
_ARTICLES = frozenset({"a", "an", "the"})
_NUMBERS = frozenset(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand "
    "million billion first second third fourth fifth once twice".split()
)
_UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
#: The same for ASCII, several times as fast: lower case, and a blank for whatever is in no token.
_ASCII_TOKENS = {code: chr(code).lower() if chr(code).isalnum() else " " for code in range(128)}
# Both begin with the character that is removed: so they are searched for fast.
_THOUSANDS = re.compile(r",(?<=\d,)(?=\d{3}(?!\d))")
_INITIALS = re.compile(r"\.(?<=\b[^\W\d_]\.)\s*(?=[^\W\d_]\b)")


def joined(text: str) -> str:
    """The text with thousands and initials as they stand in a token: "1000", "US"."""
    return _INITIALS.sub("", _THOUSANDS.sub("", text))


def answer_tokens(text: str) -> list[str]:
    """The tokens of a text; empty if it has no letter or digit, or only articles."""
    text = joined(text if text.isascii() else unicode_normalised(text).casefold())
    tokens = text.translate(_ASCII_TOKENS).split() if text.isascii() else _TOKEN.findall(text)
    return [token for token in tokens if token not in _ARTICLES]


def weak_reason(tokens: Sequence[str]) -> str | None:
    """Why it proves nothing that an answer with these tokens stands somewhere in a corpus; None if it
    does."""
    if not tokens:
        return "empty"
    if len(tokens) > MAX_TOKENS:
        return "long"
    if " ".join(tokens) in YES_NO:
        return "yes_no"
    if all(token in _NUMBERS or any(character.isdigit() for character in token) for token in tokens):
        return "number"
    letters = sum(3 if ord(character) > 0x2E80 else 1 for token in tokens for character in token)
    return "short" if letters <= 3 else None


class AnswerMatcher:
    """The answers that are looked for. The key of an answer is its tokens joined by blanks; `keys` has a
    number for each."""

    def __init__(self, answers: Iterable[str] = ()):
        self.keys: dict[str, int] = {}
        #: First token -> the lengths, in tokens, of the answers that begin with it.
        self._lengths: dict[str, set[int]] = defaultdict(set)
        for answer in answers:
            self.add(answer)

    def add(self, answer: str) -> str | None:
        """Look for this answer too. Returns its key; None if it cannot be looked for."""
        tokens = answer_tokens(answer)
        if weak_reason(tokens) in ("empty", "long"):
            return None
        key = " ".join(tokens)
        self.keys.setdefault(key, len(self.keys))
        self._lengths[tokens[0]].add(len(tokens))
        return key

    def matches_in(self, text: str) -> set[int]:
        """The numbers (`keys`) of the answers in a text."""
        tokens = answer_tokens(text)
        lengths = self._lengths
        starts = [start for start, token in enumerate(tokens) if token in lengths]
        phrases = (" ".join(tokens[i : i + length]) for i in starts for length in lengths[tokens[i]])
        return {self.keys[phrase] for phrase in phrases if phrase in self.keys}
