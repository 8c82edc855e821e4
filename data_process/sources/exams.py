"""Exam sources: multiple choice (MedQA, MedMCQA) and word problems (GSM8K).

A question of multiple choice is asked with its options, one on a line, `A. text`. Right answers are the text
of the right option, its letter, and both as they stand in the question. Score such rows by the reward term
`choice` (rag_r1/rewards/terms/choice.py): an answer that lists all options would contain the right one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from data_process.sources.source_kind import Row, expect, row_question
from rag_r1.data.files.questions import Question, text_of, texts_of
from rag_r1.data.files.row_files import short_text


def medqa(row: Row) -> Question:
    """MedQA, US (Jin et al., 2021): options by letter; the level is the exam's step, `meta_info`."""
    return _lettered_choice(row, text_of(row, "meta_info"))


def medqa_zh(row: Row) -> Question:
    """MedQA, Chinese, as BigBio has it: `choices`, and the right one's text in `answer`."""
    choices, answers = texts_of(row, "choices"), texts_of(row, "answer")
    valid = len(answers) == 1 and answers[0] in choices
    expect(valid, "`answer` must be one of the choices", row["answer"])
    return _multiple_choice(row, choices, choices.index(answers[0]))


def medmcqa(row: Row) -> Question:
    """MedMCQA (Pal et al., 2022): `opa` ... `opd` and `cop`, the right one's number from 0 (-1 in the test
    set, which has no answers), or options by letter."""
    if "opa" not in row:
        return _lettered_choice(row)
    right = row["cop"]
    choices = [text_of(row, f"op{letter}") for letter in "abcd"]
    valid = isinstance(right, int) and not isinstance(right, bool) and 0 <= right < len(choices)
    expect(valid, "`cop` must be the number of the right option, 0 to 3", right)
    return _multiple_choice(row, choices, right)


def gsm8k(row: Row) -> Question:
    """GSM8K (Cobbe et al., 2021): the number after `####`, with and without commas."""
    solution, mark, number = text_of(row, "answer").rpartition("####")
    number = number.strip()
    expect(mark and number, "`answer` must end in #### and a number", solution or number)
    return row_question(row, [number, number.replace(",", "")], {"question_type": "word_problem"})


def _lettered_choice(row: Row, level: str | None = None) -> Question:
    """The question of a row with `options` by letter and the right one's letter in `answer_idx`; `answer`, if
    the row has it, must be its text."""
    options, right = row["options"], text_of(row, "answer_idx")
    expect(isinstance(options, Mapping), "`options` must be texts by letter", options)
    options = {letter: option for letter, option in sorted(options.items()) if option is not None}
    ordered = list(options) == list(ascii_uppercase[: len(options)])
    expect(ordered, "`options` must be texts by letter, from A on", options)
    expect(right in options, f"`answer_idx` must be one of {', '.join(options)}", right)
    if "answer" in row and row["answer"] != options[right]:
        raise ValueError(
            f"`answer` is {short_text(row['answer'])}, but option {right} is {short_text(options[right])}"
        )
    return _multiple_choice(row, list(options.values()), list(options).index(right), level)


def _multiple_choice(row: Row, choices: Sequence[Any], right: int, level: str | None = None) -> Question:
    """The question with its choices, of which the one with the number `right`, from 0, is the answer."""
    valid = all(isinstance(choice, str) and choice.strip() for choice in choices)
    expect(valid, "the options must be texts", choices)
    letters = zip(ascii_uppercase, choices, strict=False)
    lines = [f"{letter}. {' '.join(choice.split())}" for letter, choice in letters]
    golds = [choices[right], ascii_uppercase[right], lines[right]]
    return row_question(row, golds, {"question_type": "multiple_choice", "level": level}, options=lines)
