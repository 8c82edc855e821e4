"""Reads a chat request: its question and the conversation before it.

A policy was trained on single questions in its protocol's prompt, so a follow-up question keeps that form:
the earlier questions and answers are put in front of it, in the place of the question in the prompt. The
first question of a conversation has exactly the prompt of training and evaluation. The reasoning, searches
and passages of earlier questions are not repeated.

As with every OpenAI-compatible server, the client keeps the conversation and sends all of it in the
`messages` of each request. Nothing is stored here between two requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rag_r1.protocols.actions import well_formed
from rag_r1.serving.wire import Message

_HISTORY_HEADING = "Earlier in this conversation:"
_QUESTION_HEADING = "Now answer this question:"


@dataclass(frozen=True)
class PastQuestion:
    """An earlier question of the conversation and its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class Conversation:
    """A question with its history."""

    question: str
    #: The answered questions before it, oldest first.
    earlier: tuple[PastQuestion, ...] = ()
    #: Descriptions of messages that were ignored, since the protocol's prompt has no place for them.
    ignored: tuple[str, ...] = ()


def read_conversation(messages: Sequence[Message]) -> Conversation:
    """Return the question and the history in a request's messages. Earlier questions without an answer,
    which were stopped or failed, are left out. Raises ValueError if the last message is not a question of the
    user, or if a message is not text or too long."""
    if not messages or messages[-1].role != "user" or not messages[-1].text.strip():
        raise ValueError("the last of the messages must be the user's question")
    earlier: list[PastQuestion] = []
    open_question: str | None = None
    for message in messages[:-1]:
        text = well_formed(message.text).strip()
        if message.role == "user":
            open_question = text
        elif message.role == "assistant":
            if open_question and text:
                earlier.append(PastQuestion(open_question, text))
            open_question = None
    other_roles = {message.role for message in messages} - {"user", "assistant"}
    ignored = tuple(f"messages of the role {role}" for role in sorted(other_roles))
    return Conversation(well_formed(messages[-1].text).strip(), tuple(earlier), ignored)


def with_history(conversation: Conversation) -> str:
    """Return the text to put in place of the question in the prompt: the question with its history."""
    if not conversation.earlier:
        return conversation.question
    earlier = (f"Question: {past.question}\nAnswer: {past.answer}" for past in conversation.earlier)
    return "\n".join([_HISTORY_HEADING, *earlier, _QUESTION_HEADING, conversation.question])


def fit_history(conversation: Conversation, max_history: int, fits: Callable[[str], bool]) -> tuple[str, int]:
    """Return the question with as many of the latest questions and answers as fit, at most `max_history`,
    and their number. `fits` decides whether a text fits. If no history fits, the question alone is
    returned."""
    for count in range(min(max_history, len(conversation.earlier)), 0, -1):
        text = with_history(Conversation(conversation.question, conversation.earlier[-count:]))
        if fits(text):
            return text, count
    return conversation.question, 0
