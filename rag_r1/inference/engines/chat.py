"""An engine for OpenAI-compatible chat endpoints, `/v1/chat/completions`.

A chat endpoint answers a conversation and cannot continue an arbitrary context. So the engine, one for each
episode, sends the context as a conversation: first the messages of the prompt, then alternately what the
policy wrote, as the assistant, and what the environment added, as the user. If the environment added nothing
(after a plan, or a rewritten context), the user message is `GO_ON`, since a conversation must not end with
the assistant.

Chat endpoints leave out the stop string at which generation ended; stop_strings.py restores it. A codec turns
the texts into tokens: CharacterCodec, or the tokenizer of the model that will be trained on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rag_r1.agent import Codec, Generation
from rag_r1.inference.character_codec import CharacterCodec
from rag_r1.inference.chat_completions_api import PATH, WITHHELD, read_chat
from rag_r1.inference.client import EngineFailure
from rag_r1.inference.engines.stop_strings import close_at_stop
from rag_r1.inference.episode_client import EpisodeClient, turn_seed, with_own_keys
from rag_r1.protocols import Protocol

#: The user message where the environment has added nothing.
GO_ON = "Continue."
#: The most stop strings that OpenAI's API accepts; the reply is cut at any other one by `close_at_stop`.
MAX_STOPS = 4


class ChatEngine:
    """The engine of one episode, which sends its context as a conversation.

    - `client`: sends the requests; its `usage` is the token usage of the episode
    - `codec`: turns texts into tokens and back
    - `protocol`: its tags and stop strings restore the ends of turns
    - `messages`: the prompt, in which the question's tags are already neutralised
    - `sampling`: keys of every request (model, temperature, ...)
    - `seed`: the episode's seed, from which that of each request is derived
    - `extra_body`: the user's own keys of every request; a null removes a key
    """

    def __init__(
        self,
        client: EpisodeClient,
        codec: Codec,
        protocol: Protocol,
        messages: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        seed: int,
        extra_body: Mapping[str, Any] | None = None,
    ):
        self.client, self.usage = client, client.usage
        self.codec, self.protocol = codec, protocol
        self.sampling, self.extra_body = dict(sampling), dict(extra_body or {})
        self.seed = seed
        self._prompt = [{key: message[key] for key in ("role", "content")} for message in messages]
        self._messages: list[dict[str, str]] = []
        #: The context at the end of the last generation.
        self._context: list[int] | None = None
        self._prompt_tokens = 0

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """Return the policy's next turn. Raises EngineFailure if the endpoint does not answer, or its
        content filter withholds the answer, and RunError if the disk is full."""
        messages = self._conversation(context)
        conversation = [*self._prompt, *messages]
        counts_characters = isinstance(self.codec, CharacterCodec)
        request_tokens = CharacterCodec.endpoint_tokens(max_tokens) if counts_characters else max_tokens
        body = {
            **self.sampling,
            "messages": conversation,
            "max_tokens": request_tokens,
            "stop": list(stop)[:MAX_STOPS] or None,
            "seed": turn_seed(self.seed, len(conversation)),
        }
        body, most_tokens = with_own_keys(body, self.extra_body, request_tokens)
        reply = await self.client.ask(PATH, body, read_chat, most_tokens)
        if reply.finish == WITHHELD:
            raise EngineFailure("the endpoint's filter has withheld the answer")
        text = close_at_stop(reply, self.protocol, stop)
        if self._context is None:
            text = _without_opening(text, self.protocol.opening)
        ids = self.codec.encode(text)[:max_tokens]
        self._record_turn(context, messages, ids)
        return Generation(ids)

    def restore_turn(self, context: list[int], ids: list[int]) -> None:
        """Add a turn that the policy wrote before the run was interrupted to the conversation."""
        self._record_turn(context, self._conversation(context), ids)

    def _record_turn(self, context: list[int], messages: Sequence[dict[str, str]], ids: list[int]) -> None:
        """Record the messages and the context after a turn with these ids."""
        if self._context is None:
            self._prompt_tokens = len(context)
        self._messages = [*messages, {"role": "assistant", "content": self.codec.decode(ids)}]
        self._context = [*context, *ids]

    def _conversation(self, context: list[int]) -> list[dict[str, str]]:
        """Return the messages that follow the prompt, up to the end of this context."""
        if self._context is None:
            return []
        messages, length = self._messages, len(self._context)
        if context[:length] == self._context:
            addition = self.codec.decode(context[length:])
        else:  # the context was rewritten: it is the prompt and the text that the policy wrote last
            text = self.codec.decode(context[self._prompt_tokens :])
            messages, addition = [{"role": "assistant", "content": text}], ""
        return [*messages, {"role": "user", "content": addition if addition.strip() else GO_ON}]


def _without_opening(text: str, opening: str) -> str:
    """Return a first turn without the protocol's opening, which the prompt already ends with, if the model
    repeated it."""
    opening, start = opening.strip(), text.lstrip()
    return start.removeprefix(opening) if opening and start.startswith(opening) else text
