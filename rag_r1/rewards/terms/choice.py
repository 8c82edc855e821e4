"""The term `choice`: scores the answer to a multiple-choice question.

Gold answers are the text of the right option, its letter, and both, as data_process/sources/exams.py writes
them. Exact match alone is wrong about letters: it is too strict (`option B`), and its normaliser removes an
`A` as an article, so that `A, B` is the gold answer `B`. Here an answer is right if it is

- by exact match the text of the right option;
- the right letter alone, in any brackets or punctuation, and after a word for it: `B`, `(B).`, `option B`,
  `答案：B`, `选B`, also in full-width characters;
- the right letter and then the text of its option, `B. text`.

A letter with another text and several letters are wrong. So is a small letter, which is a word in several
languages.
"""

from __future__ import annotations

import re
import unicodedata

from rag_r1.agent import Trajectory
from rag_r1.rewards.answer_metrics import exact_match
from rag_r1.rewards.registry import register

#: What may stand before the letter: words for it, white space, punctuation.
_LEAD = r"(?i:the|correct|answer|option|choice|is)\b|正确|答案|选项|应选|选择|选|是|为|[^\w]"
_LETTER = re.compile(rf"(?:{_LEAD})*([A-Z])(?![A-Za-z])[^\w]*(.*)", re.DOTALL)


@register("choice")
def choice(trajectory: Trajectory, golds: list[str]) -> float:
    """1 if the answer is the text or the letter of the right option, else 0. Without a letter among the gold
    answers it is exact match."""
    return choice_score(trajectory.answer, golds)


def choice_score(answer: str | None, golds: list[str]) -> float:
    """Returns 1.0 for the text or the letter of the right option, else 0.0; also for None, no answer."""
    letters = {gold for gold in golds if re.fullmatch("[A-Z]", gold)}
    if not letters:
        return exact_match(answer, golds)
    labelled = {f"{letter}. {gold}" for letter in letters for gold in golds}
    texts = [gold for gold in golds if gold not in letters | labelled]
    if exact_match(answer, texts):
        return 1.0
    match = _LETTER.fullmatch(unicodedata.normalize("NFKC", answer or "").strip())
    if match is None or match[1] not in letters:
        return 0.0
    return exact_match(match[2], texts) if match[2] else 1.0
