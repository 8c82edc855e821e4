"""The term `choice`: scores the answer to a multiple-choice question.

The gold answers are the text of the right option, its letter, and both together, as
data_process/sources/exams.py writes them. Exact match alone does not work for letters. It is too strict
(`option B`), and it can be wrong: its normaliser removes `A` as an article, so `A, B` would equal the gold
answer `B`. Here an answer is right if it is

- the text of the right option, by exact match;
- the right letter, with any brackets, punctuation or introducing word: `B`, `(B).`, `option B`, `答案：B`,
  `选B`, also in full-width characters; or
- the right letter followed by the text of its option: `B. text`.

Several letters, or a letter with another text, are wrong. So is a lower-case letter, since `a` is a word in
several languages.
"""

from __future__ import annotations

import re
import unicodedata

from rag_r1.agent import Trajectory
from rag_r1.rewards.answer_metrics import exact_match
from rag_r1.rewards.registry import register, zero_to_one

#: What may precede the letter: an introducing word, white space, punctuation.
_LEAD = r"(?i:the|correct|answer|option|choice|is)\b|正确|答案|选项|应选|选择|选|是|为|[\W_]"
_LETTER = re.compile(rf"(?:{_LEAD})*([A-Z])(?![A-Za-z])[\W_]*(.*)", re.DOTALL)


@register("choice", values=zero_to_one)
def choice(trajectory: Trajectory, golds: list[str]) -> float:
    """Return 1 if the answer is the text or the letter of the right option, else 0. If no gold answer is a
    letter, this is exact match."""
    return choice_score(trajectory.answer, golds)


def choice_score(answer: str | None, golds: list[str]) -> float:
    """Return 1.0 for the text or the letter of the right option, else 0.0; None, i.e. no answer, scores
    0.0."""
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
