"""Exam sources: multiple choice (MedQA, MedMCQA) and word problems (GSM8K).

A multiple-choice question is asked with its options, one on each line, as `A. text`. The gold answers are the
text of the right option, its letter, and its whole line. Such rows should be scored with the reward term
`choice` (rag_r1/rewards/terms/choice.py), since exact match is wrong for letters. Each converter raises
ValueError, saying what is wrong with the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from data_process.sources.source_kind import Row, expect, row_question
from rag_r1.data.files.questions import Question, text_of, texts_of
from rag_r1.data.files.row_files import short_text


def medqa(row: Row) -> Question:
    """Convert a row of MedQA, US (Jin et al., 2021), with options by letter.

    The level is the step of the exam, `meta_info`.
    """
    return _lettered_choice(row, text_of(row, "meta_info"))


def medqa_zh(row: Row) -> Question:
    """Convert a row of Chinese MedQA in BigBio's layout: `choices`, and the right one's text in `answer`."""
    choices, answers = texts_of(row, "choices"), texts_of(row, "answer")
    valid = len(answers) == 1 and answers[0] in choices
    expect(valid, "`answer` must be one of the choices", row["answer"])
    return _multiple_choice(row, choices, choices.index(answers[0]))


def medmcqa(row: Row) -> Question:
    """Convert a row of MedMCQA (Pal et al., 2022): `opa` ... `opd` with `cop`, or options by letter.

    `cop` is the number of the right option, from 0; it is -1 in the test set, which has no answers.
    """
    if "opa" not in row or "cop" not in row:
        return _lettered_choice(row)
    index = row["cop"]
    choices = [text_of(row, f"op{letter}") for letter in "abcd"]
    valid = isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(choices)
    expect(valid, "`cop` must be the number of the right option, 0 to 3", index)
    return _multiple_choice(row, choices, index)


def gsm8k(row: Row) -> Question:
    """Convert a row of GSM8K (Cobbe et al., 2021); its golds are the number after `####`, with and without
    commas."""
    solution, mark, number = text_of(row, "answer").rpartition("####")
    number = number.strip()
    # Without a mark, `rpartition` returns the whole text as the number.
    expect(mark and number, "`answer` must end in #### and a number", solution or number)
    return row_question(row, [number, number.replace(",", "")], {"question_type": "word_problem"})


def _lettered_choice(row: Row, level: str | None = None) -> Question:
    """Convert a row with `options` by letter and the letter of the right option in `answer_idx`.

    If the row also has an `answer`, it must be the text of that option.
    """
    options, letter = row["options"], text_of(row, "answer_idx")
    expect(isinstance(options, Mapping), "`options` must be texts by letter", options)
    options = {key: option for key, option in sorted(options.items()) if option is not None}
    ordered = list(options) == list(ascii_uppercase[: len(options)])
    expect(ordered, "`options` must be texts by letter, from A on", options)
    expect(letter in options, f"`answer_idx` must be one of {', '.join(options)}", letter)
    if "answer" in row and row["answer"] != options[letter]:
        raise ValueError(
            f"`answer` is {short_text(row['answer'])}, but option {letter} is {short_text(options[letter])}"
        )
    return _multiple_choice(row, list(options.values()), list(options).index(letter), level)


def _multiple_choice(row: Row, choices: Sequence[Any], index: int, level: str | None = None) -> Question:
    """Return the question with its choices; the one with this index, from 0, is the answer."""
    valid = len(choices) <= 26 and all(isinstance(choice, str) and choice.strip() for choice in choices)
    expect(valid, "the options must be texts, and at most 26, one for each letter", choices)
    letters = zip(ascii_uppercase, choices, strict=False)
    lines = [f"{letter}. {' '.join(choice.split())}" for letter, choice in letters]
    golds = [choices[index], ascii_uppercase[index], lines[index]]
    return row_question(row, golds, {"question_type": "multiple_choice", "level": level}, options=lines)
