"""Finds all gold answers in passages, in one pass over each passage.

A text is split into tokens: runs of letters and digits in lower case and in one Unicode form. In scripts
without spaces (Chinese, Japanese, Thai) each character is a token. "1,000" is a single token, and so are
initials ("J. K.", "U.S."). Articles are dropped, as in the metrics. A text contains an answer if the tokens
of the answer occur in it one after the other.

All answers are in one hash table. At each token of a text, the matcher looks up only phrases of the lengths
of answers that begin with this token. The time is therefore linear in the length of the text, and does not
grow with the number of answers.

A short answer or a number occurs in many unrelated texts, so a match proves little: see `weak_reason`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from rag_r1.corpus.title_index import unicode_normalised

#: Why a match of an answer proves little, or why the answer cannot be searched for ("empty" and "long").
WeakReason = Literal["empty", "long", "yes_no", "number", "short"]
#: Answers with more tokens are not searched for: they are sentences, which other texts word differently.
MAX_TOKENS = 32
#: An answer is common if it occurs in more than `MIN_COMMON` passages and in more than this share of them.
COMMON_SHARE, MIN_COMMON = 1e-3, 20

#: Keys of answers whose occurrence in a text says nothing about the question.
YES_NO = frozenset({"yes", "no", "true", "false", "noanswer"})
_ARTICLES = frozenset({"a", "an", "the"})
_NUMBERS = frozenset(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand "
    "million billion first second third fourth fifth once twice".split()
)
_UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
#: Translation table that does the same for ASCII several times as fast: letters become lower case, and
#: characters that are in no token become spaces.
_ASCII_TOKENS = {code: chr(code).lower() if chr(code).isalnum() else " " for code in range(128)}
# Both patterns begin with the character that is removed, which makes the search fast.
_THOUSANDS = re.compile(r",(?<=\d,)(?=\d{3}(?!\d))")
_INITIALS = re.compile(r"\.(?<=\b[^\W\d_]\.)\s*(?=[^\W\d_]\b)")


def join_numbers_and_initials(text: str) -> str:
    """Return the text without the marks inside numbers and initials, as they are in a token: "1000", "US"."""
    return _INITIALS.sub("", _THOUSANDS.sub("", text))


def answer_tokens(text: str) -> list[str]:
    """Return the tokens of a text, in order; [] if it has no letter or digit, or only articles."""
    text = join_numbers_and_initials(text if text.isascii() else unicode_normalised(text).casefold())
    tokens = text.translate(_ASCII_TOKENS).split() if text.isascii() else _TOKEN.findall(text)
    return [token for token in tokens if token not in _ARTICLES]


def weak_reason(tokens: Sequence[str]) -> WeakReason | None:
    """Return why an answer with these tokens, if it occurs in a corpus, proves little about the corpus; None
    for an answer whose occurrence is evidence."""
    if not tokens:
        return "empty"
    if len(tokens) > MAX_TOKENS:
        return "long"
    if " ".join(tokens) in YES_NO:
        return "yes_no"
    if all(token in _NUMBERS or any(character.isdigit() for character in token) for token in tokens):
        return "number"
    # An ideograph or a kana carries about as much information as three letters.
    letters = sum(3 if ord(character) > 0x2E80 else 1 for token in tokens for character in token)
    return "short" if letters <= 3 else None


class AnswerMatcher:
    """Searches texts for a growing set of answers. The key of an answer is its tokens joined by spaces."""

    def __init__(self, answers: Iterable[str] = ()):
        #: Maps the key of each answer to its index, in the order in which the keys were added.
        self.keys: dict[str, int] = {}
        #: Maps each first token to the lengths, in tokens, of the answers that begin with it.
        self._lengths: dict[str, set[int]] = defaultdict(set)
        for answer in answers:
            self.add(answer)

    @staticmethod
    def key_of(answer: str) -> str | None:
        """Return the key of an answer, or None if it cannot be searched for."""
        tokens = answer_tokens(answer)
        return None if weak_reason(tokens) in ("empty", "long") else " ".join(tokens)

    def add(self, answer: str) -> str | None:
        """Add an answer to those that are searched for, and return its key (`key_of`)."""
        if (key := self.key_of(answer)) is not None:
            tokens = key.split(" ")
            self.keys.setdefault(key, len(self.keys))
            self._lengths[tokens[0]].add(len(tokens))
        return key

    def matches_in(self, text: str) -> set[int]:
        """Return the indices (see `keys`) of the answers that occur in a text."""
        tokens = answer_tokens(text)
        lengths = self._lengths
        starts = [start for start, token in enumerate(tokens) if token in lengths]
        phrases = (" ".join(tokens[i : i + length]) for i in starts for length in lengths[tokens[i]])
        return {self.keys[phrase] for phrase in phrases if phrase in self.keys}
