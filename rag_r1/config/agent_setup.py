"""Builds everything that an episode needs except its engine and its question.

Training, evaluation, serving, the demo and the preflight all create their episodes from an `AgentSetup`, so
the agent that is evaluated is the agent that was trained. `AgentSetup.of` creates one from the block
`rag_r1:`. Code that has the parts already, such as the demo, passes them to the constructor. The parts are:

    protocol    the protocol, which also neutralises the tokenizer's control tokens in documents and questions
    codec       converts text to tokens and back; shared by all episodes of a process
    budget      the limits of an episode, including those of the trainer's rows and of the engine's context
    tools       makes the tools for the running event loop
    chat        encodes the messages of a prompt with the model's chat template
    failures    how failed calls are retried, and which kinds of failure are masked
    schemas     the tools' schemas, for a chat template that lists them in the prompt (`turns: chat`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rag_r1.agent import Budget, Codec, Engine, Episode, FailurePolicy, Observer, TokenizerCodec, Tool
from rag_r1.config.schema import RagR1Config
from rag_r1.protocols import Protocol, control_tokens
from rag_r1.sandbox.chat_template import ChatTemplate
from rag_r1.tools import schemas, shared_tools

#: The messages of a chat, and the JSON schemas of the tools that its template lists.
Messages = Schemas = Sequence[Mapping[str, Any]]
#: Encodes messages with the model's chat template, including its generation prompt. If the template is to
#: list the tools, their schemas are passed as `tools=`.
Chat = Callable[..., Sequence[int]]

#: The longest tokens of common vocabularies, runs of 128 spaces. A prompt with more characters than that for
#: each token of its limit is certainly too long, and is not encoded at all.
_MAX_CHARS_PER_TOKEN = 128


@dataclass(frozen=True)
class RowLimits:
    """Limits of a training row, in tokens."""

    prompt_tokens: int
    response_tokens: int
    #: The engine's context, for prompt and response together; None if only the other two limits apply.
    context_tokens: int | None = None

    def within(self, budget: Budget) -> Budget:
        """Return the budget with the limits of prompt and context set to these."""
        row_tokens = self.prompt_tokens + self.response_tokens
        # There is always room for a prompt and one token: the engine itself refuses a prompt that is too
        # long.
        context_tokens = max(self.context_tokens or row_tokens, self.prompt_tokens + 1)
        return replace(budget, max_prompt_tokens=self.prompt_tokens, max_context_tokens=context_tokens)


@dataclass(frozen=True)
class AgentSetup:
    """The parts of an episode, which the top of this module describes."""

    protocol: Protocol
    codec: Codec
    budget: Budget
    #: Is called within the event loop of an episode.
    tools: Callable[[], Mapping[str, Tool]]
    chat: Chat
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    #: Whether the protocol's prompt is used even if a row of the data set has messages.
    own_prompt: bool = False
    #: Token ids with which a plain text begins, e.g. a beginning-of-sequence token.
    start: tuple[int, ...] = ()
    #: Empty unless the chat template lists the tools.
    schemas: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(
        cls,
        settings: RagR1Config,
        tokenizer: Any,
        limits: RowLimits,
        *,
        vocabulary_size: int | None = None,
        chat: Chat | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> AgentSetup:
        """Build the setup of training (see `for_validation`) from the block `rag_r1:`.

        `vocabulary_size` is the number of token ids that the model has; None if it is not known. `chat`
        replaces the tokenizer's chat template, and `template` has further arguments of that template. Raises
        ValueError if a part cannot be built, e.g. for a template that the protocol cannot use, and whatever
        the factory of a tool raises.
        """
        listed_tools = tool_schemas(settings)
        codec = TokenizerCodec(tokenizer, vocabulary_size=vocabulary_size)
        return cls(
            protocol=for_tokenizer(settings.protocol, tokenizer, listed_tools, template),
            codec=codec,
            budget=limits.within(settings.budget(limits.response_tokens)),
            tools=partial(shared_tools, settings.retriever, settings.tools),
            chat=chat or chat_template(tokenizer, **(template or {})),
            failures=settings.failures,
            own_prompt=settings.own_prompt,
            start=tuple(codec.start),
            schemas=tuple(listed_tools),
        )

    def for_validation(self, settings: RagR1Config, limits: RowLimits) -> AgentSetup:
        """Return the same setup with the budget and the retriever of validation."""
        return replace(
            self,
            budget=limits.within(settings.budget(limits.response_tokens, validation=True)),
            tools=partial(shared_tools, settings.validation_retriever, settings.tools),
        )

    def messages(self, question: str, row_messages: Messages | None = None) -> list[Any]:
        """Return the chat messages that ask a question: those of the data set's row if it has any and
        `own_prompt` is not set, else the protocol's."""
        if row_messages is None or self.own_prompt:
            return self.protocol.messages(question)
        return list(row_messages)

    def prompt_ids(
        self, question: str, row_messages: Messages | None = None, chat: Chat | None = None
    ) -> list[int]:
        """Return the token ids of a question's prompt, up to the beginning of the policy's first turn.

        Control tokens in the question are neutralised. Raises ValueError, before encoding anything, for a
        prompt with more characters than `max_prompt_tokens` tokens can have.
        """
        messages = self.messages(question, row_messages)
        if self.budget.max_prompt_tokens is not None:
            limit = _MAX_CHARS_PER_TOKEN * self.budget.max_prompt_tokens
            if sum(len(str(message["content"])) for message in messages) > limit:
                raise ValueError(
                    f"a prompt of more than {limit} characters: shorten the question, or leave its row out"
                )
        encode_chat = chat or self.chat
        if self.schemas:
            encode_chat = partial(encode_chat, tools=list(self.schemas))
        harmless = self.protocol.harmless(messages, question)
        return self.protocol.prompt_ids(
            harmless, lambda chat_messages: list(encode_chat(chat_messages)), self.codec.encode, self.start
        )

    def prompt_fits(self, question: str, row_messages: Messages | None = None) -> bool:
        """Return whether a question's prompt is within the limits of tokens; False if it cannot be made."""
        limit = self.budget.prompt_limit
        try:
            return limit is None or len(self.prompt_ids(question, row_messages)) <= limit
        except Exception:  # a tokenizer that renders chats itself may raise anything
            return False

    def episode(self, engine: Engine, observer: Observer | None = None) -> Episode:
        """Return an episode with this engine. Must be called within a running event loop."""
        return Episode(self.protocol, self.budget, engine, self.tools(), self.codec, self.failures, observer)


def tool_schemas(settings: RagR1Config) -> list[dict[str, Any]]:
    """Return the tools' schemas for the prompt; [] unless the protocol's turns are those of the chat
    template. Raises ValueError for a tool that cannot be made, and whatever its factory raises."""
    protocol = settings.protocol
    return schemas(settings.tools, dict(protocol.queries.names)) if protocol.turns == "chat" else []


def for_tokenizer(
    protocol: Protocol, tokenizer: Any, tools: Schemas = (), template: Mapping[str, Any] | None = None
) -> Protocol:
    """Return the protocol as it is used with a tokenizer, whose control tokens it neutralises.

    If the protocol's turns are those of the chat template, it also gets the text that this template writes
    between turns. `tools` are the schemas that the template lists, and `template` has its further arguments.
    Raises ChatTemplateError if the protocol cannot use the template.
    """
    control = control_tokens(tokenizer)
    if protocol.turns == "text":
        return protocol.with_special_tokens(control)
    return protocol.in_chat(ChatTemplate(tokenizer, **(template or {})).text, tools, control)


def chat_template(tokenizer: Any, **arguments: Any) -> Chat:
    """Return the function that encodes messages with a Hugging Face tokenizer's chat template. `arguments`
    are further arguments of the template."""
    return ChatTemplate(tokenizer, **arguments).ids
