"""Finds rows with the same question and decides which are kept.

Two questions are the same if they differ only in case, white space, punctuation at the end, and in how
Unicode encodes the same characters (composed or not, full or half width, curly or straight quotes, kinds of
dashes). All other signs count: C++, C# and C are three languages, 2+2 is not 2-2, and a vowel sign makes
another word in Hindi, Thai or Arabic. Missing a duplicate costs little; wrongly merging two questions loses a
row.

Of rows with the same question and the same answers the first is kept. Rows with the same question and
different answers are all kept: PopQA asks for the occupations of several people with the same name, and each
of its rows counts in the published figures. They are listed in the same file as the rows that are removed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rag_r1.data.files.questions import Question

#: Compatibility forms (Unicode's tags) that are another way to write the same text. Not among them: <super>,
#: <sub> and <fraction> (10² is not 102), <circle>, <square> and <font> (ℝ is not R).
_SAME_TEXT = {"<compat>", "<wide>", "<narrow>", "<noBreak>", "<initial>", "<medial>", "<final>", "<isolated>"}
_ALIKE = str.maketrans(
    {
        **dict.fromkeys("“”„‟«»", '"'),
        **dict.fromkeys("‘’‚‛ʼ´`", "'"),
        **dict.fromkeys("‐‑‒–—―−", "-"),
        "\u037e": "?",  # the Greek question mark, which Unicode normalises to a semicolon
        # Soft hyphen, zero-width space, word joiner, byte-order mark, and direction marks; the joiners of
        # Indic and Persian scripts, U+200C and U+200D, distinguish words and are kept.
        **dict.fromkeys("\u00ad\u200b\u2060\ufeff\u200e\u200f\u202a\u202b\u202c\u202d\u202e", ""),
    }
)
_FINAL = " ?.。؟।॥"


def question_key(question: str) -> str:
    """A key that is equal for questions that are the same. Not empty unless the question is."""
    text = "".join(map(_plain, question.translate(_ALIKE)))
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
    text = " ".join(text.split())
    key = text.rstrip(_FINAL)
    if key == text and text.endswith("!"):
        key = text.rstrip("!").rstrip()
        if key and (key[-1].isdigit() or key[-1] in ")]"):
            key = text  # a factorial
    return key or text or question.strip() or question


@lru_cache(maxsize=4096)
def _plain(character: str) -> str:
    tag = unicodedata.decomposition(character).partition(" ")[0]
    return unicodedata.normalize("NFKC", character) if tag in _SAME_TEXT else character


def golds_key(question: Question) -> frozenset[str]:
    """A key that is equal for rows whose answers are the same."""
    return frozenset(map(question_key, question.golds))


@dataclass(frozen=True)
class RepeatedRow:
    """A row whose question is also in an earlier row or in the test set; `outcome`: whether it is kept."""

    row: Question
    first: Question
    outcome: str

    @property
    def removed(self) -> bool:
        """Whether the row was left out."""
        return self.outcome != OTHER_ANSWERS

    def to_dict(self, split: str) -> dict[str, Any]:
        """For repeated_questions.jsonl."""
        return {
            "split": split,
            "outcome": self.outcome,
            "row": row_label(self.row),
            "first": {"split": "test" if self.outcome == IN_TEST else split, **row_label(self.first)},
        }


DUPLICATE = "removed: same question, same answers"
IN_TEST = "removed: stands in the test set"
OTHER_ANSWERS = "kept: same question, other answers"
OVERLAP_KEPT = "not removed: stands in the test set"


def row_label(question: Question) -> dict[str, Any]:
    """A row as reports name it."""
    return {
        "row": question.row,
        "id": question.id,
        "question": question.question,
        "golden_answers": list(question.golds),
    }


def fold_repeats(questions: Iterable[Question]) -> tuple[list[Question], list[RepeatedRow]]:
    """The questions that are kept, in order, and every row with the same question as an earlier one."""
    same: dict[tuple[str, frozenset[str]], Question] = {}
    first_of_key: dict[str, Question] = {}
    kept, repeats = [], []
    for question in questions:
        key = question_key(question.question)
        if first := same.get((key, golds_key(question))):
            repeats.append(RepeatedRow(question, first, DUPLICATE))
            continue
        if key in first_of_key:
            repeats.append(RepeatedRow(question, first_of_key[key], OTHER_ANSWERS))
        same[key, golds_key(question)] = question
        first_of_key.setdefault(key, question)
        kept.append(question)
    return kept, repeats
