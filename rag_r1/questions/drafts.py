"""A draft: a question as the teacher wrote it, with its answer; and the reasons for which one is refused.

Every draft ends in one `Outcome`: kept, refused by a step for a reason, or open, because a server did not
answer; the next start of the command goes on with the open ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_r1.questions.documents import SourcePassage
from rag_r1.questions.seeds import GUESSABLE, MULTI_HOP, Seed

#: Step -> the reasons for which it refuses, and what each means.
REASONS: dict[str, dict[str, str]] = {
    "draft": {
        "malformed_reply": "no reply of the teacher was the JSON that was asked for",
        "teacher_declined": "the teacher said that the passages hold no such question",
    },
    "rules": {
        "wrong_form": "no question, or an answer that its kind cannot have",
        "too_few_passages": "it names one passage, and its kind needs several",
        "answer_not_in_passages": "the answer does not stand in the passages that it names",
        "answer_in_question": "the question tells its answer",
        "dangling_reference": "it makes no sense without its passage",
        "name_not_hidden": "it names what it was to describe",
    },
    "search": {"unreachable": "the retriever does not find its passages"},
    "with_passages": {"reader_disagrees": "a reader does not give this answer from the passages"},
    "closed_book": {"needs_no_search": "a reader gives the answer without any passage"},
    "one_passage": {"one_passage_is_enough": "a reader gives the answer without one of its passages"},
    "other_passages": {"another_answer": "other passages of the corpus give another answer"},
    "standalone": {"not_standalone": "a reader says that it makes no sense without its passage"},
    "duplicates": {
        "duplicate": "it is nearly equal to a question that is kept",
        "in_other_split": "it is nearly equal to a question of the test set",
    },
}
#: Reason -> its step.
STEP_OF = {reason: step for step, reasons in REASONS.items() for reason in reasons}


@dataclass(frozen=True)
class Draft:
    """The teacher's question for a seed. `golds`: all accepted forms of the answer, the teacher's own first;
    `passages`: the passages that the teacher names, in the order of the question's steps."""

    seed: Seed
    question: str
    golds: tuple[str, ...]
    passages: tuple[SourcePassage, ...]

    @property
    def id(self) -> str:
        """The id of its seed."""
        return self.seed.id

    @property
    def kind(self) -> str:
        """The kind of its seed."""
        return self.seed.kind

    @property
    def is_multi_hop(self) -> bool:
        """Whether its kind needs several passages."""
        return self.kind in MULTI_HOP

    @property
    def is_guessable(self) -> bool:
        """Whether a guess is right half of the time."""
        return self.kind in GUESSABLE


@dataclass(frozen=True)
class Outcome:
    """The result for a seed. `reason`: why it was refused, None if it was not; `is_verified`: whether it has
    passed the checks; `detail`: an explanation of the refusal, or why it is open."""

    seed: Seed
    draft: Draft | None = None
    reason: str | None = None
    is_verified: bool = False
    detail: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether it has passed all checks and is not a duplicate."""
        return self.is_verified and self.reason is None

    @property
    def is_open(self) -> bool:
        """Whether it is neither kept nor refused yet."""
        return not self.is_verified and self.reason is None
