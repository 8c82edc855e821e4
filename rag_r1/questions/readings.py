"""The checks of a draft by a reader: which passages the reader sees, and what its answers mean.

    with_passages    with the passages that the draft names, it must give the draft's answer
    closed_book      without passages, it must not
    one_passage      with all of them but one, it must not, for kinds of questions that need several
    other_passages   with other passages that a search finds, it must not give another answer from them; nor,
                     for these kinds, if those that contain a passage's title take the place of that passage
    standalone       asked whether the question makes sense by itself, it must not say no

The reader is a model and errs, so it is asked several times, until the samples that are missing cannot change
what the majority says (`verdict`). Where a guess is right half of the time (comparisons, yes or no), a draft
is refused for an answer that the reader should not have only if all samples agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rag_r1.data.evidence import base_title
from rag_r1.questions.documents import SourcePassage
from rag_r1.questions.drafts import STEP_OF, Draft
from rag_r1.questions.prompts import truncate
from rag_r1.questions.rules import YES_NO
from rag_r1.rewards import cover_exact_match, normalise

#: The reader's answers, one for each sample; None if the reader gave no answer.
Answers = Sequence[str | None]
#: Texts of the passages of one request.
Passages = tuple[str, ...]
#: Words that a reader's answer may have beside those of the gold answer.
_MAX_EXTRA_WORDS = 4


@dataclass(frozen=True)
class Check:
    """A check by the reader. `shows`: the passages of each reading, from the draft and the other passages of
    a search; `votes`: how many answers to a reading vote yes; `refuses`: the verdict with which a draft is
    refused for the `reason`; `needs_all`: whether a verdict of yes takes all samples, for a draft."""

    reason: str
    shows: Callable[[Draft, Sequence[str]], list[Passages]]
    votes: Callable[[Draft, Sequence[str], Answers], int]
    refuses: bool
    needs_all: Callable[[Draft], bool] = lambda draft: draft.is_guessable

    @property
    def step(self) -> str:
        """The name of the check."""
        return STEP_OF[self.reason]


def agrees(answer: str | None, golds: Sequence[str]) -> bool:
    """Whether a reader's answer is a gold answer. It may have a few words more, as in "in 1926"."""
    if answer is None:
        return False
    if normalise(golds[0]) in YES_NO:
        return normalise(answer) == normalise(golds[0])
    longest = max(len(normalise(gold).split()) for gold in golds) + _MAX_EXTRA_WORDS
    return len(answer.split()) <= longest and bool(cover_exact_match(answer, golds, ordered=True))


def is_rival(draft: Draft, passages: Sequence[str], answer: str | None) -> bool:
    """Whether an answer is not the draft's and stands in `passages`, the shown ones that are not the draft's.
    A name in the question is not a rival, since the question is about it; but a comparison's rival is the
    other of the two names in the question."""
    if answer is None or agrees(answer, draft.golds) or agrees(draft.golds[0], [answer]):
        return False
    if draft.kind == "yes_no":
        return normalise(answer) in YES_NO
    is_named = bool(cover_exact_match(draft.question, [answer], ordered=True))
    if draft.kind == "comparison":
        return is_named
    return not is_named and any(cover_exact_match(text, [answer], ordered=True) for text in passages)


def verdict(votes: int, answers: int, samples: int, needed: int) -> bool | None:
    """Whether at least `needed` of `samples` answers vote yes, if `votes` of the first `answers` do; None
    while the missing ones can change that."""
    if votes >= needed:
        return True
    missing = samples - answers
    return False if votes + missing < needed else None


def _draft_passages(draft: Draft, neighbours: Sequence[str]) -> list[Passages]:
    return [tuple(truncate(passage.contents) for passage in draft.passages)]


def _no_passages(draft: Draft, neighbours: Sequence[str]) -> list[Passages]:
    return [()]


def _ablated_passages(draft: Draft, neighbours: Sequence[str]) -> list[Passages]:
    """The draft's passages without each one in turn, the last one first; so two passages are shown each
    alone, in their order."""
    return [remaining for _, remaining in _ablations(draft)][::-1]


def _neighbour_passages(draft: Draft, neighbours: Sequence[str]) -> list[Passages]:
    """The neighbours; and for each of several own passages, the remaining ones with the neighbours that
    contain its title, since they may be about a namesake."""
    texts = tuple(map(truncate, neighbours))
    readings = [texts] if texts else []
    for passage, remaining in _ablations(draft):
        title = base_title(passage.title)
        namesakes = tuple(text for text in texts if title and cover_exact_match(text, [title], ordered=True))
        if namesakes:
            readings.append((*remaining, *namesakes))
    return readings


def _ablations(draft: Draft) -> list[tuple[SourcePassage, Passages]]:
    """(passage, texts of the remaining ones) for each passage; nothing for a kind that needs only one."""
    if not draft.is_multi_hop:
        return []
    texts = [truncate(passage.contents) for passage in draft.passages]
    return [(passage, (*texts[:i], *texts[i + 1 :])) for i, passage in enumerate(draft.passages)]


def _count_right(draft: Draft, passages: Sequence[str], answers: Answers) -> int:
    return sum(agrees(answer, draft.golds) for answer in answers)


def _count_repeated_rival(draft: Draft, passages: Sequence[str], answers: Answers) -> int:
    """The number of times that the reader gave the same rival, give or take a few words: errors seldom
    repeat, a real second answer does."""
    [draft_texts] = _draft_passages(draft, ())
    neighbours = [text for text in passages if text not in draft_texts]
    rivals = [answer for answer in answers if answer is not None and is_rival(draft, neighbours, answer)]
    return max((sum(agrees(answer, [rival]) for answer in rivals) for rival in rivals), default=0)


def _count_no(draft: Draft, passages: Sequence[str], answers: Answers) -> int:
    return sum(normalise(answer or "") == "no" for answer in answers)


STANDALONE = Check("not_standalone", _no_passages, _count_no, refuses=True, needs_all=lambda draft: False)
CHECKS = (
    Check("reader_disagrees", _draft_passages, _count_right, refuses=False, needs_all=lambda draft: False),
    Check("needs_no_search", _no_passages, _count_right, refuses=True),
    Check("one_passage_is_enough", _ablated_passages, _count_right, refuses=True),
    Check("another_answer", _neighbour_passages, _count_repeated_rival, refuses=True),
)
