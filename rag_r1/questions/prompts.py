"""Makes the requests to the teacher and the reader, and parses their replies strictly.

Passages are treated as hostile data. Each is embedded in the request as a JSON string, so that it cannot end
the string. Control tokens of chat templates and tokenizers (`<|im_end|>`, `<tool_call>`, `[INST]`) are
neutralised first, as they are in the observations of the agent. A request is about a single seed or draft,
so an instruction in a passage cannot affect other questions. API keys are removed from all texts.

A reply must be one JSON object that has exactly the requested fields, within limits of length. Only a reply
that declines, whose question is null, may have others, which are not read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from rag_r1.data.languages import LANGUAGES
from rag_r1.inference.strict_replies import json_of
from rag_r1.protocols.neutraliser import Neutraliser
from rag_r1.questions.seeds import KindName, Seed

PROMPTS = ("teacher", "reader", "review")
#: Longer passages are cut to this number of characters before a model reads them.
MAX_CHARS = 6000
#: Longer replies, in characters, are malformed.
MAX_REPLY_CHARS = 8000
#: The reader gives this answer if it knows none.
UNKNOWN = "unknown"

#: The teacher's task for each kind of question.
TASKS: dict[KindName, str] = {
    "one_hop": "Ask for one fact of the passage: a name, a place, a work, an office. The answer is no date.",
    "number_date": "Ask for a number, a year or a date that the passage states. The answer has digits.",
    "two_facts": (
        "Ask for the subject of the passage by two of its facts, which together are true of nothing else. "
        "The answer is the name of the subject; the question does not contain it."
    ),
    "bridge": (
        "Ask a question that needs all passages, one after the other: each leads to the subject of the next. "
        "Describe the subjects of the later passages by what the earlier ones say about them, and do not "
        "name them. The answer stands in the last passage, and in no other."
    ),
    "comparison": (
        "Ask which of the subjects of the two passages comes first, is older, is larger or the like. Name "
        "both; the answer is the name of one. Each passage states one half of what has to be compared."
    ),
    "yes_no": (
        "Ask a question about the subjects of both passages that can be answered with yes or no and needs a "
        "fact of each. Name both."
    ),
    "both": (
        "Ask for the same fact about the subjects of both passages, in one question that names both. The "
        "answer is the two facts in the order of the question, joined by “and”. The facts differ, and each "
        "stands in the passage about its subject."
    ),
}
#: Added to the task of a bridge whose first passage must not be named.
_OBSCURE = (
    " Do not name the subject of the first passage either: describe it, so that only another search can tell "
    "what is meant, and so that the description is true of nothing else."
)

#: Added to the task of a yes_no question, whose answer is decided beforehand.
_SEED_ANSWER = " The answer is {}."
#: Zero-width joiner and non-joiner, which spell words of Persian and of Indic languages.
_JOINERS = str.maketrans("", "", "\u200c\u200d")


def _plain(text: str) -> str:
    """Put a text on one line. Raises ValueError if it has unprintable characters, such as lone surrogates;
    joiners of letters may be in it."""
    text = " ".join(text.split())
    if not text.translate(_JOINERS).isprintable():
        raise ValueError("it has characters that cannot be printed")
    return text


_Text = Annotated[str, AfterValidator(_plain)]
_Short = Annotated[_Text, Field(min_length=1, max_length=120)]


class _Strict(BaseModel):
    """A JSON object whose values have exactly the declared types, without further fields."""

    model_config = ConfigDict(strict=True, extra="forbid")


class TeacherReply(_Strict):
    """A reply in which the teacher writes a question."""

    question: Annotated[_Text, Field(min_length=8, max_length=400)]
    answer: _Short
    aliases: Annotated[list[_Short], Field(max_length=8)] = []
    #: Numbers of the passages that the question needs, counted from 1 as in the request.
    passages: Annotated[list[Annotated[int, Field(ge=1, le=4)]], Field(min_length=1, max_length=4)]


class Declined(_Strict):
    """A reply in which the teacher says that the passages allow no such question."""

    question: None


class ReaderReply(_Strict):
    """A reply of the reader. Its answer may be `UNKNOWN`."""

    answer: Annotated[_Text, Field(min_length=1, max_length=300)]


class Prompts:
    """Makes the two parts of each request: the instructions and the case, which is the data in JSON.

    `secrets` are API keys, which are removed from all texts.
    """

    def __init__(self, secrets: Iterable[str] = ()):
        self._secrets = [secret for secret in secrets if secret]
        self._neutralise = Neutraliser((), ())
        self._texts = {
            name: (files("rag_r1.questions") / "prompts" / f"{name}.txt").read_text(encoding="utf-8")
            for name in PROMPTS
        }

    @property
    def sha256(self) -> dict[str, str]:
        """The hash of each prompt. The teacher's includes the tasks, which are parts of its requests."""
        texts = {
            **self._texts,
            "teacher": "\n".join([self._texts["teacher"], *TASKS.values(), _OBSCURE, _SEED_ANSWER]),
        }
        return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}

    def instructions(self, name: str) -> str:
        """Return the instructions of a prompt, one of `PROMPTS`."""
        return self._texts[name]

    def teacher_case(self, seed: Seed) -> dict[str, Any]:
        """Make the case for the teacher: the kind, the task and the passages of a seed."""
        task = TASKS[seed.kind] + (_OBSCURE if seed.obscure else "")
        task += _SEED_ANSWER.format(seed.planned_answer) if seed.planned_answer else ""
        passages = self._number_passages([passage.contents for passage in seed.passages])
        return {"kind": seed.kind, "task": task, "passages": passages}

    def reader_case(self, question: str, passages: Sequence[str]) -> dict[str, Any]:
        """Make the case for the reader: a question, and the passages from which it is to be answered."""
        return {"question": self.harmless(question), "passages": self._number_passages(passages)}

    def review_case(self, question: str, language: str | None) -> dict[str, Any]:
        """Make the case in which the reader judges the wording of a question. `language` is the code of the
        passages' language, a key of `LANGUAGES`; None if it is not known."""
        case = {"question": self.harmless(question)}
        return case if language is None else {**case, "language": LANGUAGES[language]}

    def harmless(self, text: str) -> str:
        """Remove API keys from a text, and neutralise its control tokens."""
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        return self._neutralise(text)

    def _number_passages(self, passages: Sequence[str]) -> list[dict[str, Any]]:
        """Number the passages from 1; their texts are truncated and made harmless."""
        texts = (self.harmless(truncate(passage)) for passage in passages)
        return [{"number": number, "text": text} for number, text in enumerate(texts, 1)]


def truncate(contents: str) -> str:
    """Return the part of a passage that models read: its first `MAX_CHARS` characters."""
    return contents[:MAX_CHARS]


def read_teacher(reply: str, n_passages: int) -> TeacherReply | Declined:
    """Parse the teacher's reply to a request with `n_passages` passages. Raises ValueError if malformed."""
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
    """Parse the reader's reply; None if the reader knows no answer. Raises ValueError if it is malformed."""
    try:
        answer = ReaderReply.model_validate(_object(reply)).answer
    except ValidationError as error:
        raise ValueError(str(error)) from None
    return None if answer.rstrip(".").casefold() in (UNKNOWN, "") else answer


def _object(reply: str) -> dict[str, Any]:
    """Parse a reply as a JSON object. Raises ValueError if it is something else, or too long."""
    if len(reply) > MAX_REPLY_CHARS:
        raise ValueError(f"it has more than {MAX_REPLY_CHARS} characters")
    value = json_of(reply)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__}, not an object")
    return value
