"""Finds rows with the same question, and decides which of them are kept.

Two questions are the same if they differ only in case, white space, final punctuation, or the Unicode
encoding of the same characters (composed or not, full or half width, curly or straight quotes, kinds of
dashes). Case is folded as Unicode defines it, so ß and ss are equal. All other characters count: C++, C# and
C are three languages, 2+2 is not 2-2, n! is not n, and a vowel sign makes another word in Hindi, Thai or
Arabic. The rules are strict because a missed duplicate costs little, whereas wrongly merging two questions
loses a row.

Among rows with the same question and the same answers, the first is kept. Rows with the same question but
different answers are all kept: PopQA asks for the occupations of several people with the same name, and each
of these rows counts in the published figures. Both cases are listed, with their outcome, in
repeated_questions.jsonl.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from rag_r1.data.files.questions import Question

#: Tags of Unicode's compatibility forms that are only another way to write the same text. The others are not:
#: <super>, <sub> and <fraction> (10² is not 102), <circle>, <square> and <font> (ℝ is not R), and the rare
#: <small> and <vertical>.
_SAME_FORM = {"<compat>", "<wide>", "<narrow>", "<noBreak>", "<initial>", "<medial>", "<final>", "<isolated>"}
#: Maps double quotation marks and dashes that are used interchangeably to one of them, and invisible
#: characters to nothing.
ALIKE = {
    **dict.fromkeys("“”„‟«»", '"'),
    **dict.fromkeys("‐‑‒–—―−", "-"),
    # Soft hyphen, zero-width space, word joiner, byte-order mark, and direction marks; the joiners of Indic
    # and Persian scripts, U+200C and U+200D, distinguish words and are kept.
    **dict.fromkeys("\u00ad\u200b\u2060\ufeff\u200e\u200f\u202a\u202b\u202c\u202d\u202e", ""),
}
#: The same for questions, with apostrophes, and the Greek question mark, which Unicode normalises to a
#: semicolon.
_ALIKE = str.maketrans({**ALIKE, **dict.fromkeys("‘’‚‛ʼ´`", "'"), "\u037e": "?"})
#: Punctuation at the end of a question that does not distinguish it from another one.
_FINAL_MARKS = " ?.。؟।॥"


def question_key(question: str) -> str:
    """Return a key that is equal for questions that are the same. Only an empty question has an empty key."""
    text = "".join(map(_plain, question.translate(_ALIKE)))
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
    text = " ".join(text.split())
    key = text.rstrip(_FINAL_MARKS)
    while key.endswith("!") and not _is_factorial(key):
        key = key.rstrip("!").rstrip(_FINAL_MARKS)
    return key or text or question.strip() or question


def _is_factorial(text: str) -> bool:
    """Return whether the exclamation marks at the end follow a number, a closing bracket, or a single letter
    that is not the whole text."""
    prefix, _, word = text.rstrip("! ").rpartition(" ")
    is_letter = bool(prefix) and len(word) == 1 and word.isalpha()
    return bool(word) and (word[-1].isdigit() or word[-1] in ")]" or is_letter)


@lru_cache(maxsize=4096)
def _plain(character: str) -> str:
    """Return the character in its compatibility form, if that is only another way to write the same text."""
    tag = unicodedata.decomposition(character).partition(" ")[0]
    return unicodedata.normalize("NFKC", character) if tag in _SAME_FORM else character


def golds_key(question: Question) -> frozenset[str]:
    """Return a key that is equal for rows with the same answers in any order."""
    return frozenset(map(question_key, question.golds))


class Outcome(StrEnum):
    """The outcome for a row with a repeated question, as it is written to repeated_questions.jsonl."""

    DUPLICATE = "removed: same question, same answers"
    IN_TEST = "removed: stands in the test set"
    OTHER_ANSWERS = "kept: same question, other answers"
    OVERLAP_KEPT = "not removed: stands in the test set"


def row_label(question: Question) -> dict[str, Any]:
    """Return the fields by which a report identifies a row."""
    return {
        "row": question.row,
        "id": question.id,
        "question": question.question,
        "golden_answers": list(question.golds),
    }


@dataclass(frozen=True)
class RepeatedRow:
    """A row with the same question as another row."""

    row: Question
    #: The other row, which is an earlier one of the same split or one of the test set.
    first: Question
    outcome: Outcome

    @property
    def is_removed(self) -> bool:
        """Whether the row was left out."""
        return self.outcome in (Outcome.DUPLICATE, Outcome.IN_TEST)

    def to_dict(self, split: str) -> dict[str, Any]:
        """Return the row's line of repeated_questions.jsonl."""
        in_test = self.outcome in (Outcome.IN_TEST, Outcome.OVERLAP_KEPT)
        return {
            "split": split,
            "outcome": self.outcome.value,
            "row": row_label(self.row),
            "first": {"split": "test" if in_test else split, **row_label(self.first)},
        }


def drop_duplicates(questions: Iterable[Question]) -> tuple[list[Question], list[RepeatedRow]]:
    """Return the questions that are kept, in order, and every row with the same question as an earlier
    one."""
    first_with_answers: dict[tuple[str, frozenset[str]], Question] = {}
    first_with_question: dict[str, Question] = {}
    unique, repeats = [], []
    for question in questions:
        key, answers = question_key(question.question), golds_key(question)
        if first := first_with_answers.get((key, answers)):
            repeats.append(RepeatedRow(question, first, Outcome.DUPLICATE))
            continue
        if key in first_with_question:
            repeats.append(RepeatedRow(question, first_with_question[key], Outcome.OTHER_ANSWERS))
        first_with_answers[key, answers] = question
        first_with_question.setdefault(key, question)
        unique.append(question)
    return unique, repeats
