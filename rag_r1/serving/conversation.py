"""Reads a chat request: its question and the conversation before it.

A policy was trained on one question in its protocol's prompt, so a follow-up question is asked in the same
form: the earlier questions and answers stand before the question, in its place of the prompt. The first
question of a conversation is asked with exactly the prompt of training and evaluation. Reasoning, searches
and passages of earlier questions are not repeated.

Sessions are the client's: each request has the conversation in its `messages`, as with every
OpenAI-compatible server, and nothing is kept here between two requests.
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
    """A question of the conversation and what was answered."""

    question: str
    answer: str


@dataclass(frozen=True)
class Conversation:
    """The last question and the answered ones before it (`earlier`), oldest first. `ignored`: the kinds of
    messages that the protocol's prompt has no room for, in words."""

    question: str
    earlier: tuple[PastQuestion, ...] = ()
    ignored: tuple[str, ...] = ()


def read_conversation(messages: Sequence[Message]) -> Conversation:
    """Returns the question and the history in the messages of a request. A question without an answer
    (stopped, or failed) is left out. Raises ValueError unless the last message is a question, and all are
    texts."""
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
    other_roles = {m.role for m in messages} - {"user", "assistant"}
    ignored = tuple(f"messages of the role {role}" for role in sorted(other_roles))
    return Conversation(well_formed(messages[-1].text).strip(), tuple(earlier), ignored)


def with_history(conversation: Conversation) -> str:
    """The text that stands for the question in the prompt: the question itself if it is the first."""
    if not conversation.earlier:
        return conversation.question
    earlier = (f"Question: {past.question}\nAnswer: {past.answer}" for past in conversation.earlier)
    return "\n".join([_HISTORY_HEADING, *earlier, _QUESTION_HEADING, conversation.question])


def fit_history(conversation: Conversation, max_history: int, fits: Callable[[str], bool]) -> tuple[str, int]:
    """Returns `with_history` of as many of the last questions and answers, at most `max_history`, as fit, and
    their number. If none fits it is the question alone, whether that fits or not."""
    for count in range(min(max_history, len(conversation.earlier)), 0, -1):
        text = with_history(Conversation(conversation.question, conversation.earlier[-count:]))
        if fits(text):
            return text, count
    return conversation.question, 0
