"""The question and the history of a chat request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.serving.conversation import (
    Conversation,
    PastQuestion,
    fit_history,
    read_conversation,
    with_history,
)
from rag_r1.serving.wire import Message

FIRST, SECOND = PastQuestion("Who founded A?", "Mara"), PastQuestion("Where was she born?", "Karlen")


def said(*pairs: tuple[str, str]) -> list[Message]:
    return [Message(role=role, content=text) for role, text in pairs]


def test_a_first_question_is_asked_as_it_is():
    conversation = read_conversation(said(("user", " Who founded A? ")))
    assert conversation == Conversation("Who founded A?") and with_history(conversation) == "Who founded A?"


def test_a_follow_up_question_stands_behind_what_was_said():
    conversation = read_conversation(
        said(("user", FIRST.question), ("assistant", FIRST.answer), ("user", SECOND.question))
    )
    assert conversation.earlier == (FIRST,)
    text = with_history(conversation)
    assert text.endswith(f"\n{SECOND.question}") and f"Answer: {FIRST.answer}" in text


def test_questions_without_an_answer_are_left_out():
    conversation = read_conversation(
        said(("user", "stopped"), ("user", FIRST.question), ("assistant", FIRST.answer), ("user", "now"))
    )
    assert conversation.earlier == (FIRST,)
    assert read_conversation(said(("user", "a"), ("assistant", ""), ("user", "b"))).earlier == ()


def test_other_messages_are_ignored_and_named():
    conversation = read_conversation(said(("system", "Be brief."), ("user", "now")))
    assert conversation.question == "now" and conversation.ignored == ("messages of the role system",)


@pytest.mark.parametrize("messages", [[], said(("assistant", "x")), said(("user", "  "))])
def test_the_last_message_must_be_a_question(messages: list[Message]):
    with pytest.raises(ValueError, match="the last of the messages"):
        read_conversation(messages)


def test_a_question_that_no_tokenizer_takes_is_made_well_formed():
    assert read_conversation([Message.model_construct(role="user", content="a\ud800b")]).question == "a?b"


def test_as_many_of_the_last_answers_are_shown_as_fit():
    conversation = Conversation("now", (FIRST, SECOND))
    assert fit_history(conversation, 4, lambda text: True) == (with_history(conversation), 2)
    assert fit_history(conversation, 1, lambda text: True) == (
        with_history(Conversation("now", (SECOND,))),
        1,
    )
    assert fit_history(conversation, 4, lambda text: FIRST.question not in text)[1] == 1
    assert fit_history(conversation, 4, lambda text: False) == ("now", 0)
    assert fit_history(conversation, 0, lambda text: True) == ("now", 0)


MESSAGES = st.tuples(st.sampled_from(["user", "assistant", "system"]), st.sampled_from(["", " ", "a", "b"]))


@given(st.lists(MESSAGES, max_size=8))
def test_whatever_was_said_before_the_last_question_is_asked(pairs):
    conversation = read_conversation(said(*pairs, ("user", "the last")))
    assert conversation.question == "the last" and with_history(conversation).endswith("the last")
    answers = [text for role, text in pairs if role == "assistant"]
    assert len(conversation.earlier) <= len(answers)
    assert all(exchange.question and exchange.answer for exchange in conversation.earlier)
