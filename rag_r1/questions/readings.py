"""The checks of a draft by a reader: what it is shown, and what its answers mean. Pure functions.

    with_passages    shown the passages that it names, the reader must give the answer
    closed_book      shown nothing, it must not
    one_passage      shown all of them but one, it must not, if the question claims to need several
    other_passages   shown what a search finds beside them, it must not find one other answer there; nor if
                     passages that name the same thing take the place of one of several
    standalone       asked whether the question makes sense by itself, it must not say no

A reader errs, so it is asked several times and a majority decides: `verdict`. It ends as soon as the rest
cannot change it. Where a guess is right half of the time (comparisons, yes or no), all samples must agree
before a draft is refused for an answer that the reader should not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rag_r1.questions.documents import SourcePassage
from rag_r1.questions.drafts import STEP_OF, Draft
from rag_r1.questions.links import base_title
from rag_r1.questions.prompts import truncated
from rag_r1.questions.rules import YES_NO
from rag_r1.rewards import cover_exact_match, normalise

#: Of the samples of a reading; None for no answer.
Answers = Sequence[str | None]
#: Words that a reader's answer may have beside those of the answer.
_MORE_WORDS = 4


@dataclass(frozen=True)
class Check:
    """A check. `shows`: the passages of each reading, from the draft and what a search finds beside its own;
    `votes`: how many of the answers to a reading speak for the verdict `yes`; `refuses`: the verdict with
    which a draft is refused for the `reason`; `by_all`: must all samples agree for `yes`, for this draft?"""

    reason: str
    shows: Callable[[Draft, Sequence[str]], list[tuple[str, ...]]]
    votes: Callable[[Draft, Sequence[str], Answers], int]
    refuses: bool
    by_all: Callable[[Draft], bool] = lambda draft: draft.is_guessable

    @property
    def step(self) -> str:
        """Its name."""
        return STEP_OF[self.reason]


def agrees(answer: str | None, golds: Sequence[str]) -> bool:
    """Is a reader's answer a gold answer? It may have a few words more, as in "in 1926"."""
    if answer is None:
        return False
    if normalise(golds[0]) in YES_NO:
        return normalise(answer) == normalise(golds[0])
    longest = max(len(normalise(gold).split()) for gold in golds) + _MORE_WORDS
    return len(answer.split()) <= longest and bool(cover_exact_match(answer, golds, ordered=True))


def is_rival(draft: Draft, passages: Sequence[str], answer: str | None) -> bool:
    """Is it another answer than the draft's, and one that stands in the other passages that were shown? A
    name that the question itself has is none, it is what the question is about; of a comparison it is one of
    the two that the question names."""
    if answer is None or agrees(answer, draft.golds) or agrees(draft.golds[0], [answer]):
        return False
    if draft.kind == "yes_no":
        return normalise(answer) in YES_NO
    is_named = bool(cover_exact_match(draft.question, [answer], ordered=True))
    if draft.kind == "comparison":
        return is_named
    return not is_named and any(cover_exact_match(text, [answer], ordered=True) for text in passages)


def verdict(votes: int, answers: int, samples: int, needed: int) -> bool | None:
    """Whether at least `needed` of `samples` answers vote yes, of which `votes` of the first `answers` do;
    None while the missing ones can decide."""
    if votes >= needed:
        return True
    return False if votes + samples - answers < needed else None


def _named(draft: Draft, others: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(truncated(passage.contents) for passage in draft.passages)]


def _nothing(draft: Draft, others: Sequence[str]) -> list[tuple[str, ...]]:
    return [()]


def _each(draft: Draft, others: Sequence[str]) -> list[tuple[str, ...]]:
    """All but one, for each one; of two passages each alone."""
    left = [rest for _, rest in _withheld(draft)] if draft.is_multi_hop else []
    return left[::-1]


def _others(draft: Draft, others: Sequence[str]) -> list[tuple[str, ...]]:
    """What was found; and for each passage of several, the rest with those that name what it is about, which
    may be about a namesake."""
    found = tuple(map(truncated, others))
    shown = [found] if found else []
    for passage, rest in _withheld(draft) if draft.is_multi_hop else ():
        title = base_title(passage.title)
        if alike := tuple(text for text in found if title and cover_exact_match(text, [title], ordered=True)):
            shown.append((*rest, *alike))
    return shown


def _withheld(draft: Draft) -> list[tuple[SourcePassage, tuple[str, ...]]]:
    """Each passage with the texts of the others."""
    texts = [truncated(passage.contents) for passage in draft.passages]
    return [(passage, (*texts[:place], *texts[place + 1 :])) for place, passage in enumerate(draft.passages)]


def _right(draft: Draft, passages: Sequence[str], answers: Answers) -> int:
    return sum(agrees(answer, draft.golds) for answer in answers)


def _rivals(draft: Draft, passages: Sequence[str], answers: Answers) -> int:
    """How often the reader gave the same other answer, with a few words more or without: one who errs seldom
    errs twice alike."""
    own = {truncated(passage.contents) for passage in draft.passages}
    others = [text for text in passages if text not in own]
    rivals = [answer for answer in answers if answer is not None and is_rival(draft, others, answer)]
    return max((sum(agrees(answer, [rival]) for answer in rivals) for rival in rivals), default=0)


def _noes(draft: Draft, passages: Sequence[str], answers: Answers) -> int:
    return sum(normalise(answer or "") == "no" for answer in answers)


STANDALONE = Check("not_standalone", _nothing, _noes, refuses=True, by_all=lambda draft: False)
CHECKS = (
    Check("reader_disagrees", _named, _right, refuses=False, by_all=lambda draft: False),
    Check("needs_no_search", _nothing, _right, refuses=True),
    Check("one_passage_is_enough", _each, _right, refuses=True),
    Check("another_answer", _others, _rivals, refuses=True),
)
