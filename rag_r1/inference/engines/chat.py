"""An engine for OpenAI-compatible chat endpoints, `/v1/chat/completions`.

Such an endpoint cannot continue a context; it answers a conversation. So the engine, one for each episode,
sends the context as a conversation: the prompt's messages, then in turn what the policy wrote, as the
assistant, and what the environment has added, as the user. If nothing was added (a plan, a rewritten
context), the user message is `GO_ON`, since a conversation must not end with the assistant.

Chat endpoints leave out the stop string at which they ended; stop_strings.py puts it back. A codec turns the
texts into tokens (rag_r1/inference/character_codec.py, or the tokenizer of the model that will be trained on
them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rag_r1.agent import Codec, Generation
from rag_r1.inference.character_codec import CharacterCodec
from rag_r1.inference.chat_completions_api import PATH, WITHHELD, read_chat
from rag_r1.inference.client import EngineFailure
from rag_r1.inference.engines.stop_strings import close_at_stop
from rag_r1.inference.episode_client import EpisodeClient, merge_body, turn_seed
from rag_r1.protocols import Protocol

#: The user message where the environment has added nothing.
GO_ON = "Continue."
#: OpenAI's API takes no more stop strings; the reply is cut at any further one (`close_at_stop`).
MAX_STOPS = 4


class ChatEngine:
    """The engine of one episode, which sends its context as a conversation.

    `messages`: the prompt, with the question neutralised; `sampling`: keys of each request (model,
    temperature, ...); `extra_body`: the user's own, of which null removes a key."""

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
        self._prompt = [{"role": m["role"], "content": m["content"]} for m in messages]
        self._messages: list[dict[str, str]] = []
        #: The context at the end of the last generation.
        self._context: list[int] | None = None
        self._prompt_tokens = 0

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """The policy's next turn. Raises EngineFailure if the endpoint gives none, or its filter withholds
        it."""
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
        body = merge_body(body, self.extra_body)
        reply = await self.client.ask(PATH, body, read_chat, request_tokens)
        if reply.finish == WITHHELD:
            raise EngineFailure("the endpoint's filter has withheld the answer")
        text = close_at_stop(reply, self.protocol, stop)
        if self._context is None:
            text = _without_opening(text, self.protocol.opening)
        ids = self.codec.encode(text)[:max_tokens]
        self._record_turn(context, messages, ids)
        return Generation(ids)

    def restore_turn(self, context: list[int], ids: list[int]) -> None:
        """Add a turn that the policy wrote in an earlier start to the conversation."""
        self._record_turn(context, self._conversation(context), ids)

    def _record_turn(self, context: list[int], messages: Sequence[dict[str, str]], ids: list[int]) -> None:
        """Note the messages and the context at the end of a turn with these ids."""
        if self._context is None:
            self._prompt_tokens = len(context)
        self._messages = [*messages, {"role": "assistant", "content": self.codec.decode(ids)}]
        self._context = [*context, *ids]

    def _conversation(self, context: list[int]) -> list[dict[str, str]]:
        """The messages after the prompt, up to the end of this context."""
        if self._context is None:
            return []
        messages, length = self._messages, len(self._context)
        if context[:length] == self._context:
            addition = self.codec.decode(context[length:])
        else:  # rewritten: the prompt, and what the policy wrote last
            text = self.codec.decode(context[self._prompt_tokens :])
            messages, addition = [{"role": "assistant", "content": text}], ""
        return [*messages, {"role": "user", "content": addition if addition.strip() else GO_ON}]


def _without_opening(text: str, opening: str) -> str:
    """A first turn without the opening that the prompt has already, if the model has repeated it."""
    opening, start = opening.strip(), text.lstrip()
    return start.removeprefix(opening) if opening and start.startswith(opening) else text
