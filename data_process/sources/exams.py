"""Exam sources: multiple choice (MedQA, MedMCQA) and word problems (GSM8K).

A question of multiple choice is asked with its options, one on a line, `A. text`. Right answers are the text
of the right option, its letter, and both as they stand in the question. Score such rows by the reward term
`choice` (rag_r1/rewards/terms/choice.py): an answer that lists all options would contain the right one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from data_process.sources.source_kind import IDS
from rag_r1.data.files.questions import Question, clean_question, id_of, text_of, texts_of
from rag_r1.data.files.row_files import short_text

Row = dict[str, Any]


def medqa(row: Row) -> Question:
    """MedQA, US (Jin et al., 2021): options by letter; the level is the exam's step, `meta_info`."""
    return _by_letter(row, text_of(row, "meta_info"))


def medqa_zh(row: Row) -> Question:
    """MedQA, Chinese, as BigBio has it: `choices`, and the right one's text in `answer`."""
    choices, answers = texts_of(row, "choices"), texts_of(row, "answer")
    if len(answers) != 1 or answers[0] not in choices:
        raise ValueError(f"`answer` must be one of the choices, not {short_text(row['answer'])}")
    return _multiple_choice(row, choices, choices.index(answers[0]))


def medmcqa(row: Row) -> Question:
    """MedMCQA (Pal et al., 2022): `opa` ... `opd` and `cop`, the right one's number from 0 (-1 in the test
    set, which has no answers), or options by letter."""
    if "opa" not in row:
        return _by_letter(row)
    right, choices = row["cop"], [text_of(row, f"op{letter}") for letter in "abcd"]
    if isinstance(right, bool) or not isinstance(right, int) or not 0 <= right < len(choices):
        raise ValueError(f"`cop` must be the number of the right option, 0 to 3, not {short_text(right)}")
    return _multiple_choice(row, choices, right)


def gsm8k(row: Row) -> Question:
    """GSM8K (Cobbe et al., 2021): the number after `####`, with and without commas."""
    solution, mark, number = text_of(row, "answer").rpartition("####")
    if not mark or not number.strip():
        raise ValueError(f"`answer` must end in #### and a number, not {short_text(solution or number)}")
    number = number.strip()
    return clean_question(
        text_of(row, "question"),
        [number, number.replace(",", "")],
        id_of(row, IDS),
        {"question_type": "word_problem"},
    )


def _by_letter(row: Row, level: str | None = None) -> Question:
    """Options by letter and the right one's letter in `answer_idx`; `answer`, if there, is its text."""
    options, right = row["options"], text_of(row, "answer_idx")
    if not isinstance(options, Mapping):
        raise ValueError(f"`options` must be texts by letter, not {short_text(options)}")
    options = {letter: option for letter, option in sorted(options.items()) if option is not None}
    if list(options) != list(ascii_uppercase[: len(options)]):
        raise ValueError(f"`options` must be texts by letter, from A on, not {short_text(options)}")
    if right not in options:
        raise ValueError(f"`answer_idx` must be one of {', '.join(options)}, not {short_text(right)}")
    if "answer" in row and row["answer"] != options[right]:
        raise ValueError(
            f"`answer` is {short_text(row['answer'])}, but option {right} is {short_text(options[right])}"
        )
    return _multiple_choice(row, list(options.values()), list(options).index(right), level)


def _multiple_choice(row: Row, choices: Sequence[Any], right: int, level: str | None = None) -> Question:
    if not all(isinstance(choice, str) and choice.strip() for choice in choices):
        raise ValueError(f"the options must be texts, not {short_text(choices)}")
    lines = [
        f"{letter}. {' '.join(choice.split())}"
        for letter, choice in zip(ascii_uppercase, choices, strict=False)
    ]
    golds = [choices[right], ascii_uppercase[right], lines[right]]
    metadata = {"question_type": "multiple_choice", "level": level}
    return clean_question(text_of(row, "question"), golds, id_of(row, IDS), metadata, options=lines)
