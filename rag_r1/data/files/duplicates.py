"""Finds rows with the same question and decides which are kept.

Two questions are the same if they differ only in case, white space, punctuation at the end, and in how
Unicode encodes the same characters (composed or not, full or half width, curly or straight quotes, kinds of
dashes). Case is folded as Unicode defines it, which makes ß and ss the same. All other signs count: C++, C#
and C are three languages, 2+2 is not 2-2, n! is not n, and a vowel sign makes another word in Hindi, Thai or
Arabic. Missing a duplicate costs little; wrongly merging two questions loses a row.

Of rows with the same question and the same answers the first is kept. Rows with the same question and
different answers are all kept: PopQA asks for the occupations of several people with the same name, and each
of its rows counts in the published figures. They are listed in the same file as the rows that are removed
(repeated_questions.jsonl), which gives the outcome of each.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from rag_r1.data.files.questions import Question

#: Compatibility forms (Unicode's tags) that are another way to write the same text. Not among them: <super>,
#: <sub> and <fraction> (10² is not 102), <circle>, <square> and <font> (ℝ is not R), and the rare <small> and
#: <vertical>.
_SAME_FORM = {"<compat>", "<wide>", "<narrow>", "<noBreak>", "<initial>", "<medial>", "<final>", "<isolated>"}
#: Signs that are written in several ways -> one of these; invisible ones -> nothing.
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
#: Punctuation that may be left out at the end.
_FINAL_MARKS = " ?.。؟।॥"


def question_key(question: str) -> str:
    """A key that is equal for questions that are the same; empty only for an empty question."""
    text = "".join(map(_plain, question.translate(_ALIKE)))
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
    text = " ".join(text.split())
    key = text.rstrip(_FINAL_MARKS)
    while key.endswith("!") and not _is_factorial(key):
        key = key.rstrip("!").rstrip(_FINAL_MARKS)
    return key or text or question.strip() or question


def _is_factorial(text: str) -> bool:
    """Whether the exclamation marks at the end follow a number, a bracket, or a letter by itself that ends a
    sentence."""
    prefix, _, word = text.rstrip("! ").rpartition(" ")
    is_letter = len(word) == 1 and word.isalpha() and prefix
    return bool(word) and (word[-1].isdigit() or word[-1] in ")]" or bool(is_letter))


@lru_cache(maxsize=4096)
def _plain(character: str) -> str:
    """The character in its compatibility form, if that is another way to write the same text."""
    tag = unicodedata.decomposition(character).partition(" ")[0]
    return unicodedata.normalize("NFKC", character) if tag in _SAME_FORM else character


def golds_key(question: Question) -> frozenset[str]:
    """A key that is equal for rows whose answers are the same."""
    return frozenset(map(question_key, question.golds))


class Outcome(StrEnum):
    """The outcome for a row whose question is repeated; the text stands in repeated_questions.jsonl."""

    DUPLICATE = "removed: same question, same answers"
    IN_TEST = "removed: stands in the test set"
    OTHER_ANSWERS = "kept: same question, other answers"
    OVERLAP_KEPT = "not removed: stands in the test set"


def row_label(question: Question) -> dict[str, Any]:
    """The fields by which a report names a row."""
    return {
        "row": question.row,
        "id": question.id,
        "question": question.question,
        "golden_answers": list(question.golds),
    }


@dataclass(frozen=True)
class RepeatedRow:
    """A row whose question is also in the row `first`: an earlier one of its split, or one of the test
    set."""

    row: Question
    first: Question
    outcome: Outcome

    @property
    def is_removed(self) -> bool:
        """Whether the row was left out."""
        return self.outcome in (Outcome.DUPLICATE, Outcome.IN_TEST)

    def to_dict(self, split: str) -> dict[str, Any]:
        """A line of repeated_questions.jsonl."""
        in_test = self.outcome in (Outcome.IN_TEST, Outcome.OVERLAP_KEPT)
        return {
            "split": split,
            "outcome": self.outcome.value,
            "row": row_label(self.row),
            "first": {"split": "test" if in_test else split, **row_label(self.first)},
        }


def drop_duplicates(questions: Iterable[Question]) -> tuple[list[Question], list[RepeatedRow]]:
    """The questions that are kept, in order, and every row with the same question as an earlier one."""
    first_of_row: dict[tuple[str, frozenset[str]], Question] = {}
    first_of_key: dict[str, Question] = {}
    unique, repeats = [], []
    for question in questions:
        key = question_key(question.question)
        if first := first_of_row.get((key, golds_key(question))):
            repeats.append(RepeatedRow(question, first, Outcome.DUPLICATE))
            continue
        if key in first_of_key:
            repeats.append(RepeatedRow(question, first_of_key[key], Outcome.OTHER_ANSWERS))
        first_of_row[key, golds_key(question)] = question
        first_of_key.setdefault(key, question)
        unique.append(question)
    return unique, repeats
