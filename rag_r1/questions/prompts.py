"""Makes the requests to teacher and reader, and reads their replies strictly.

Passages are hostile data. Each stands in its request as a JSON string, which it cannot end, since quotation
marks in it are escaped; and before that, whatever a chat template or a tokenizer would take for a mark of its
own (`<|im_end|>`, `<tool_call>`, `[INST]`) is made harmless, as in an observation. A request is about one
seed or one draft, so an instruction in a passage cannot change another question. The keys of the endpoints
are cut out of all texts. A reply must be one JSON object with the fields that were asked for and no other,
within limits of length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from rag_r1.inference.strict_replies import json_of
from rag_r1.protocols.neutraliser import Neutraliser
from rag_r1.questions.seeds import KindName, Seed

PROMPTS = ("teacher", "reader", "standalone")
#: Characters of a passage that models read.
MAX_CHARS = 6000
#: Most characters of a reply.
MAX_REPLY_CHARS = 8000
#: The reader's answer if it has none.
UNKNOWN = "unknown"

TASKS: dict[KindName, str] = {
    "one_hop": "Ask for one fact of the passage: a name, a place, a work, an office. The answer is no date.",
    "number_date": "Ask for a number, a year or a date that the passage states. The answer has digits.",
    "two_facts": (
        "Ask who or what it is that two facts of the passage are true of, which together are true of "
        "nothing else. The answer is the name of what the passage is about; the question does not tell it."
    ),
    "bridge": (
        "Ask a question that needs all passages, one after the other: what the first says leads to what "
        "the next is about. Describe what the later passages are about by what the earlier ones say of it, "
        "and do not name it. The answer stands in the last passage, and in no other."
    ),
    "comparison": (
        "Ask which of the two that the passages are about comes first, is older, larger or the like. Both "
        "are named; the answer is the name of one. Each passage states the half of what has to be compared."
    ),
    "yes_no": (
        "Ask a question about both that the passages are about, which can be answered with yes or no and "
        "needs a fact of each. Both are named."
    ),
}
_OBSCURE = (
    " Do not name what the first passage is about either: describe it, so that only another search can tell "
    "what is meant, and so that the description is true of nothing else."
)

_SEED_ANSWER = " The answer is {}."


def _plain(text: str) -> str:
    """The text on one line. Raises ValueError for characters that cannot be printed, such as half of one."""
    text = " ".join(text.split())
    if not text.isprintable():
        raise ValueError("it has characters that cannot be printed")
    return text


_Text = Annotated[str, AfterValidator(_plain)]
_Short = Annotated[_Text, Field(min_length=1, max_length=120)]


class _Strict(BaseModel):
    """Values of exactly these types, without further fields."""

    model_config = ConfigDict(strict=True, extra="forbid")


class TeacherReply(_Strict):
    """A question, its answer, and the numbers of the passages that it needs, from 1."""

    question: Annotated[_Text, Field(min_length=8, max_length=400)]
    answer: _Short
    aliases: Annotated[list[_Short], Field(max_length=8)] = []
    passages: Annotated[list[Annotated[int, Field(ge=1, le=4)]], Field(min_length=1, max_length=4)]


class Declined(_Strict):
    """The teacher has no question."""

    question: None


class ReaderReply(_Strict):
    """The reader's reply: its answer, which may be `UNKNOWN`."""

    answer: Annotated[_Text, Field(min_length=1, max_length=300)]


class Prompts:
    """Makes the cases and instructions of requests. `secrets`: the keys that no request may have in its
    texts."""

    def __init__(self, secrets: Iterable[str] = ()):
        self._secrets = [secret for secret in secrets if secret]
        self._neutralise = Neutraliser((), ())
        self._texts = {
            name: (files("rag_r1.questions") / "prompts" / f"{name}.txt").read_text(encoding="utf-8")
            for name in PROMPTS
        }

    @property
    def sha256(self) -> dict[str, str]:
        """The hash of each prompt; the teacher's includes the tasks."""
        texts = {
            **self._texts,
            "teacher": "\n".join([self._texts["teacher"], *TASKS.values(), _OBSCURE, _SEED_ANSWER]),
        }
        return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}

    def instructions(self, name: str) -> str:
        """The instructions of a prompt."""
        return self._texts[name]

    def teacher_case(self, seed: Seed) -> dict[str, Any]:
        """The case that the teacher gets for a seed: its kind, its task and its passages."""
        task = TASKS[seed.kind] + (_OBSCURE if seed.obscure else "")
        task += _SEED_ANSWER.format(seed.planned_answer) if seed.planned_answer else ""
        passages = self._number_passages([passage.contents for passage in seed.passages])
        return {"kind": seed.kind, "task": task, "passages": passages}

    def reader_case(self, question: str, passages: Sequence[str]) -> dict[str, Any]:
        """The case that the reader gets for a question: the question and the passages."""
        return {"question": self.harmless(question), "passages": self._number_passages(passages)}

    def standalone_case(self, question: str) -> dict[str, Any]:
        """The case in which the reader judges whether a question makes sense."""
        return {"question": self.harmless(question)}

    def harmless(self, text: str) -> str:
        """The text without keys, and with control marks made harmless, as it may stand in a request."""
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        return self._neutralise(text)

    def _number_passages(self, passages: Sequence[str]) -> list[dict[str, Any]]:
        """The passages with their numbers from 1, truncated and made harmless."""
        texts = (self.harmless(truncate(passage)) for passage in passages)
        return [{"number": number, "text": text} for number, text in enumerate(texts, 1)]


def truncate(contents: str) -> str:
    """The part of a passage that models read: its first `MAX_CHARS` characters."""
    return contents[:MAX_CHARS]


def read_teacher(reply: str, n_passages: int) -> TeacherReply | Declined:
    """The teacher's reply about `n_passages` passages. Raises ValueError for anything else."""
    value = _object(reply)
    try:
        if "question" in value and value["question"] is None:
            return Declined(question=None)
        teacher_reply = TeacherReply.model_validate(value)
    except ValidationError as error:
        raise ValueError(str(error)) from None
    numbers = teacher_reply.passages
    if max(numbers) > n_passages or len(set(numbers)) < len(numbers):
        raise ValueError("it names a passage twice, or one that is not there")
    return teacher_reply


def read_reader(reply: str) -> str | None:
    """The reader's answer; None if it has none. Raises ValueError for anything else."""
    try:
        answer = ReaderReply.model_validate(_object(reply)).answer
    except ValidationError as error:
        raise ValueError(str(error)) from None
    return None if answer.rstrip(".").casefold() in (UNKNOWN, "") else answer


def _object(reply: str) -> dict[str, Any]:
    """The JSON object of a reply. Raises ValueError if it is not one, or too long."""
    if len(reply) > MAX_REPLY_CHARS:
        raise ValueError(f"it has more than {MAX_REPLY_CHARS} characters")
    value = json_of(reply)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__}, not an object")
    return value
