"""Declares drafts, their outcomes, and the reasons for which a draft is refused.

A draft is a question with its answer, as the teacher wrote them. Every seed leads to one `Outcome`: its draft
is kept, refused by a step for one of the `REASONS`, or open because a server did not answer. When the command
is run again, it continues with the open drafts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rag_r1.data.answer_forms import answer_forms
from rag_r1.questions.pair_answers import facts_in
from rag_r1.questions.passages.documents import SourcePassage
from rag_r1.questions.seeds import GUESSABLE, MULTI_HOP, KindName, Seed

#: The steps in their order. Each maps its reasons for refusing a draft to an explanation for the data card.
REASONS: dict[str, dict[str, str]] = {
    "draft": {
        "malformed_reply": "the teacher gave no reply that was the JSON that was asked for",
        "teacher_declined": "the teacher said that the passages hold no such question",
    },
    "rules": {
        "wrong_form": "no question, or an answer that its kind cannot have",
        "too_few_passages": "it names one passage, and its kind needs several",
        "answer_not_in_passages": "the answer does not stand in the passages that it names",
        "answer_in_question": "the question tells its answer",
        "dangling_reference": "it makes no sense without its passage",
        "name_not_in_passages": "it names something, or has a number, that its passages do not",
        "name_not_hidden": "it names what it was to describe",
    },
    "review": {
        "not_standalone": "a reader says that it makes no sense without its passage",
        "several_questions": "a reader says that it asks for more than one thing",
        "answer_changes": "a reader says that its answer depends on when it is asked",
        "another_language": "a reader says that it is not in the language of its passages",
        "not_only_a_question": "a reader says that it has more in it than a question",
    },
    "search": {"unreachable": "the retriever does not find its passages"},
    "with_passages": {"reader_disagrees": "a reader does not give this answer from the passages"},
    "closed_book": {"needs_no_search": "a reader gives the answer without any passage"},
    "one_passage": {"one_passage_is_enough": "a reader gives the answer without one of its passages"},
    "other_passages": {"another_answer": "other passages of the corpus give another answer"},
    "duplicates": {
        "duplicate": "it is nearly equal to a question that is kept",
        "in_other_split": "it is nearly equal to a question of the test set",
    },
}
#: Maps each reason to the step that refuses for it.
STEP_OF = {reason: step for step, reasons in REASONS.items() for reason in reasons}


@dataclass(frozen=True)
class Draft:
    """A question that the teacher wrote for a seed."""

    seed: Seed
    question: str
    #: All accepted forms of the answer; the first is the teacher's own.
    golds: tuple[str, ...]
    #: The passages that the question needs according to the teacher, in the order of its steps.
    passages: tuple[SourcePassage, ...]

    @property
    def id(self) -> str:
        """The id of the seed, which is also the id of the question."""
        return self.seed.id

    @property
    def kind(self) -> KindName:
        """The kind of the question."""
        return self.seed.kind

    @property
    def is_multi_hop(self) -> bool:
        """Whether a question of this kind needs several passages."""
        return self.kind in MULTI_HOP

    @property
    def is_guessable(self) -> bool:
        """Whether a question of this kind has two possible answers, so that half of all guesses are right."""
        return self.kind in GUESSABLE

    @property
    def facts(self) -> tuple[tuple[str, ...], ...]:
        """The accepted forms of each fact that the answer names.

        There are two facts in the answer to a `both` question, or none if its passages do not hold them.
        Otherwise there is one.
        """
        if self.kind != "both":
            return (self.golds,)
        texts = [passage.contents for passage in self.passages]
        pair = facts_in(self.golds[0], texts) if self.golds else None
        return tuple(map(answer_forms, pair or ()))


class Refusal(NamedTuple):
    """Why a step refuses a draft."""

    #: One of the REASONS.
    reason: str
    #: An explanation for people.
    detail: str


@dataclass(frozen=True)
class Outcome:
    """What has become of a seed: its draft is kept, refused or still open."""

    seed: Seed
    #: None if the teacher has written none.
    draft: Draft | None = None
    #: One of the REASONS if the draft was refused.
    reason: str | None = None
    #: Whether the draft has passed all checks except the one for duplicates.
    is_verified: bool = False
    #: Explains the refusal, or why the draft is still open.
    detail: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the draft has passed all checks, and is not a duplicate."""
        return self.is_verified and self.reason is None

    @property
    def is_open(self) -> bool:
        """Whether the draft is neither kept nor refused yet."""
        return not self.is_verified and self.reason is None
