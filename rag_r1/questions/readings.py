"""The checks that the reader makes of a draft: which passages the reader sees, and what its answers mean.

    review           When asked about its wording, the reader must find no fault in it. The reader sees the
                     question alone, and says which fault it is.
    with_passages    With the draft's passages, the reader must give the draft's answer, and not a longer name
                     that the draft's answer is a part of, since exact match would refuse the whole name.
    closed_book      Without any passage, it must not give that answer.
    one_passage      With all of the draft's passages but one, it must not give that answer. This applies
                     only to kinds of questions that need several passages.
    other_passages   With other passages that a search finds, it must not give another answer. For questions
                     with several passages, each passage is also replaced by those that contain its title.

In one check there may be several readings, each with other passages. Since the reader is a model and errs, it
is asked several times in each reading, until further samples cannot change the `verdict`. If half of all
guesses are right (comparisons, yes or no), a draft is refused for a known answer only if all samples agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rag_r1.data.evidence import base_title
from rag_r1.questions.drafts import STEP_OF, Draft
from rag_r1.questions.pair_answers import splits
from rag_r1.questions.passages.documents import SourcePassage
from rag_r1.questions.prompts import truncate
from rag_r1.questions.rules import YES_NO
from rag_r1.rewards import cover_exact_match, normalise

#: The reader's answers in a reading, one for each sample; None where the reader gave no answer.
Answers = Sequence[str | None]
#: Texts of the passages in a reading.
Passages = tuple[str, ...]
#: A right answer of the reader may have this many more words than the longest gold answer.
_MAX_EXTRA_WORDS = 4
_CAPITALISED = r"[A-ZÀ-ÖØ-Þ]\w+"
#: Words that are no part of a name, though an answer may begin with them.
_BEFORE_NAMES = frozenset("a an the in on at by from of to near for with and it is was".split())


@dataclass(frozen=True)
class Check:
    """A check that the reader makes of a draft.

    The answers of a reading are votes for yes or no. They give a verdict, which decides about the draft.
    """

    #: The reason for which the check refuses a draft.
    reason: str
    #: (draft, texts of neighbours) -> the passages of each reading.
    shows: Callable[[Draft, Sequence[str]], list[Passages]]
    #: (draft, texts of the reading's passages, answers) -> the number of votes for yes.
    votes: Callable[[Draft, Sequence[str], Answers], int]
    #: The verdict, yes or no, with which the draft is refused.
    refusing_verdict: bool
    #: Only if the verdict yes refuses the draft: whether all samples must vote for it, and not just a
    #: majority.
    needs_all: Callable[[Draft], bool] = lambda draft: draft.is_guessable
    #: Maps answers that name another reason to this reason.
    reasons: Mapping[str, str] = field(default_factory=dict)

    def reason_for(self, answers: Answers) -> str:
        """Return the reason for a refusal by these answers: the one that most of them name, or else that of
        the check."""
        words = [normalise(answer or "") for answer in answers]
        named = [self.reasons[word] for word in words if word in self.reasons]
        return max(dict.fromkeys(named), key=named.count, default=self.reason)

    @property
    def step(self) -> str:
        """The name of the check, which is also the name of the step in the data card."""
        return STEP_OF[self.reason]


def agrees(answer: str | None, golds: Sequence[str]) -> bool:
    """Whether the reader's answer matches one of the gold answers, which must not be empty. It may have a few
    extra words, as in "in 1926", unless the answer is yes or no."""
    if answer is None:
        return False
    if normalise(golds[0]) in YES_NO:
        return normalise(answer) == normalise(golds[0])
    longest = max(len(normalise(gold).split()) for gold in golds) + _MAX_EXTRA_WORDS
    return len(answer.split()) <= longest and bool(cover_exact_match(answer, golds, ordered=True))


def is_right(draft: Draft, answer: str | None) -> bool:
    """Whether the reader's answer matches that of the draft. The answer to a `both` question must have both
    facts, in their order."""
    if draft.kind != "both":
        return agrees(answer, draft.golds)
    pairs = [zip(facts, draft.facts, strict=True) for facts in splits(answer or "")]
    return any(all(agrees(fact, forms) for fact, forms in pair) for pair in pairs)


def is_part_of_name(golds: Sequence[str], answer: str | None, passages: Sequence[str]) -> bool:
    """Whether the reader gives a longer name that contains a gold answer, as Karlen Ford contains "Karlen".

    A name is a gold answer with a capitalised word before or after it that stands so in the passages. Numbers
    and dates have no such names.
    """
    if answer is None or re.search(r"\d", golds[0]):
        return False
    names = [
        name
        for gold in map(re.escape, golds)
        for pattern in (rf"\b{_CAPITALISED} {gold}\b", rf"\b{gold} {_CAPITALISED}")
        for name in re.findall(pattern, answer)
        if name not in golds and name.split()[0].lower() not in _BEFORE_NAMES
    ]
    return any(name in text for name in names for text in passages)


def is_rival(draft: Draft, passages: Sequence[str], answer: str | None) -> bool:
    """Whether an answer differs from the draft's, and could be right as well.

    In a comparison, the only rival is the other of the two names in the question; in a yes_no question, it is
    the other one of yes and no. In other questions, a rival must occur in `passages`, the texts of the
    reading that are not the draft's own, and names in the question are no rivals, since it is about them. A
    rival in a `both` question names two facts, of which at least one is a rival of the draft's.
    """
    if answer is None or _is_same(answer, draft.golds):
        return False
    if draft.kind == "yes_no":
        return normalise(answer) in YES_NO
    is_named = bool(cover_exact_match(draft.question, [answer], ordered=True))
    if draft.kind == "comparison":
        return is_named
    pairs = splits(answer) if draft.kind == "both" else [(answer,)]
    return any(_has_rival(draft, facts, passages) for facts in pairs)


def _is_same(fact: str, forms: Sequence[str]) -> bool:
    """Whether a fact is one with these accepted forms, or a shorter form of the first."""
    return agrees(fact, forms) or agrees(forms[0], [fact])


def _has_rival(draft: Draft, facts: Sequence[str], passages: Sequence[str]) -> bool:
    """Whether these facts include others than the draft's, all of which occur in the passages and not in the
    question."""
    others = [fact for fact, forms in zip(facts, draft.facts, strict=True) if not _is_same(fact, forms)]
    return bool(others) and all(
        not cover_exact_match(draft.question, [other], ordered=True)
        and any(cover_exact_match(text, [other], ordered=True) for text in passages)
        for other in others
    )


def verdict(votes: int, answers: int, samples: int, needed: int) -> bool | None:
    """Return whether at least `needed` of `samples` answers vote yes.

    `votes` of the first `answers` do so. Returns None while the remaining samples can change the verdict.
    """
    if votes >= needed:
        return True
    missing = samples - answers
    return False if votes + missing < needed else None


def _draft_passages(draft: Draft, neighbours: Sequence[str]) -> list[Passages]:
    """Return the reading with all of the draft's passages."""
    return [tuple(truncate(passage.contents) for passage in draft.passages)]


def _no_passages(draft: Draft, neighbours: Sequence[str]) -> list[Passages]:
    """Return the reading without passages."""
    return [()]


def _ablated_passages(draft: Draft, neighbours: Sequence[str]) -> list[Passages]:
    """Return all readings in which one of the draft's passages is left out.

    The last passage is left out first, so that of two passages the first one is shown first.
    """
    return [remaining for _, remaining in _ablations(draft)][::-1]


def _neighbour_passages(draft: Draft, neighbours: Sequence[str]) -> list[Passages]:
    """Return a reading with the neighbours and, for multi-hop drafts, some in which they replace a passage.

    A passage is replaced by the neighbours that contain its title, since they may be about a namesake.
    """
    texts = tuple(map(truncate, neighbours))
    readings = [texts] if texts else []
    for passage, remaining in _ablations(draft):
        title = base_title(passage.title)
        namesakes = tuple(text for text in texts if title and cover_exact_match(text, [title], ordered=True))
        if namesakes:
            readings.append((*remaining, *namesakes))
    return readings


def _ablations(draft: Draft) -> list[tuple[SourcePassage, Passages]]:
    """Return each passage of a multi-hop draft with the texts of the others; [] for a single-hop draft."""
    if not draft.is_multi_hop:
        return []
    texts = [truncate(passage.contents) for passage in draft.passages]
    return [(passage, (*texts[:i], *texts[i + 1 :])) for i, passage in enumerate(draft.passages)]


def _count_right(draft: Draft, passages: Sequence[str], answers: Answers) -> int:
    """Count the answers that agree with the draft's."""
    return sum(is_right(draft, answer) for answer in answers)


def _count_whole_and_right(draft: Draft, passages: Sequence[str], answers: Answers) -> int:
    """Count the answers that agree with the draft's, and do not give a longer name."""
    right = [answer for answer in answers if is_right(draft, answer)]
    return sum(not any(is_part_of_name(forms, answer, passages) for forms in draft.facts) for answer in right)


def _count_repeated_rival(draft: Draft, passages: Sequence[str], answers: Answers) -> int:
    """Count the answers that agree on one rival.

    An error seldom repeats itself, while an answer that is really a second right one does.
    """
    [draft_texts] = _draft_passages(draft, ())
    neighbours = [text for text in passages if text not in draft_texts]
    rivals = [answer for answer in answers if answer is not None and is_rival(draft, neighbours, answer)]
    return max((sum(agrees(answer, [rival]) for answer in rivals) for rival in rivals), default=0)


def _count_repeated_fault(draft: Draft, passages: Sequence[str], answers: Answers) -> int:
    """Count the answers that name the same fault of the wording, since an error seldom repeats itself."""
    words = [normalise(answer or "") for answer in answers]
    return max(map(words.count, WORDING_FAULTS))


#: Maps what the reader may find in the wording of a question to the reason for which it is refused.
WORDING_FAULTS = {
    "unclear": "not_standalone",
    "several": "several_questions",
    "changes": "answer_changes",
    "language": "another_language",
    "extra": "not_only_a_question",
}
#: The check of the wording, which comes first, since its requests are the shortest.
REVIEW = Check(
    "not_standalone",
    _no_passages,
    _count_repeated_fault,
    refusing_verdict=True,
    needs_all=lambda draft: False,
    reasons=WORDING_FAULTS,
)
#: The checks by the reader's answers, in their order.
CHECKS = (
    Check("reader_disagrees", _draft_passages, _count_whole_and_right, refusing_verdict=False),
    Check("needs_no_search", _no_passages, _count_right, refusing_verdict=True),
    Check("one_passage_is_enough", _ablated_passages, _count_right, refusing_verdict=True),
    Check("another_answer", _neighbour_passages, _count_repeated_rival, refusing_verdict=True),
)
