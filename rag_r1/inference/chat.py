"""An engine for OpenAI-compatible chat endpoints, `/v1/chat/completions`.

Such an endpoint cannot continue a context; it answers a conversation. So the engine, one for each episode,
tells the context as one: the prompt's messages, then in turn what the policy wrote, as the assistant, and
what the environment has added, as the user. If nothing was added (a plan, a rewritten context), the user says
`GO_ON`, since a conversation must not end with the assistant.

Chat endpoints leave out the stop string at which they ended. It is put back: the one that the endpoint names
(vLLM does), or else the closing tag of the block that is still open. What was written behind the first stop
string, by an endpoint that ignores them, is cut off.

A codec turns the texts into tokens (character_codec.py, or the tokenizer of the model that will be trained on
them).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from rag_r1.agent import Codec, Generation
from rag_r1.inference.character_codec import PER_TOKEN, CharacterCodec
from rag_r1.inference.client import EngineFailure
from rag_r1.inference.episode_client import EpisodeClient, Reply, finish_fields, merge_body
from rag_r1.inference.response_metadata import first_choice, message_text
from rag_r1.protocols import Protocol
from rag_r1.protocols.actions import well_formed

PATH = "/chat/completions"
#: What the user says where the environment has added nothing.
GO_ON = "Continue."
#: OpenAI's API takes no more stop strings.
MAX_STOPS = 4
#: generate raises EngineFailure for this finish; the text only has to be non-empty.
_WITHHELD = "-"


class ChatEngine:
    """Plays one episode; see the top of the module. `messages`: the prompt, with the question neutralised;
    `sampling`: keys of each request (model, temperature, ...); `extra_body`: the user's own, of which null
    removes a key."""

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
        self.client, self.codec, self.protocol, self.usage = client, codec, protocol, client.usage
        self.sampling, self.seed, self.extra_body = dict(sampling), seed, dict(extra_body or {})
        self._prompt = [{"role": m["role"], "content": m["content"]} for m in messages]
        self._messages: list[dict[str, str]] = []
        #: The context at the end of the last generation.
        self._context: list[int] | None = None
        self._prompt_tokens = 0

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """The policy's next turn. Raises EngineFailure."""
        messages = self._conversation(context)
        conversation = [*self._prompt, *messages]
        request_tokens = self._request_tokens(max_tokens)
        body = {
            **self.sampling,
            "messages": conversation,
            "max_tokens": request_tokens,
            "stop": list(stop)[:MAX_STOPS] or None,
            "seed": turn_seed(self.seed, len(conversation)),
        }
        body = merge_body(body, self.extra_body)
        reply = await self.client.ask(PATH, body, read_chat, request_tokens)
        if reply.finish == "content_filter":
            raise EngineFailure("the endpoint's filter has withheld the answer")
        text = close_at_stop(reply, self.protocol, stop)
        if self._context is None:
            text = _without_opening(text, self.protocol.opening)
        ids = self.codec.encode(text)[:max_tokens]
        self._keep(context, messages, ids)
        return Generation(ids)

    def recall(self, context: list[int], ids: list[int]) -> None:
        """A turn of the policy that was played before: it is part of the conversation."""
        self._keep(context, self._conversation(context), ids)

    def _request_tokens(self, max_tokens: int) -> int:
        """The limit in the endpoint's tokens; a character codec counts characters."""
        return -(-max_tokens // PER_TOKEN) if isinstance(self.codec, CharacterCodec) else max_tokens

    def _keep(self, context: list[int], messages: Sequence[dict[str, str]], ids: list[int]) -> None:
        if self._context is None:
            self._prompt_tokens = len(context)
        self._messages = [*messages, {"role": "assistant", "content": self.codec.decode(ids)}]
        self._context = [*context, *ids]

    def _conversation(self, context: list[int]) -> list[dict[str, str]]:
        """What was said after the prompt, up to this context."""
        if self._context is None:
            return []
        messages, length = self._messages, len(self._context)
        if context[:length] == self._context:
            addition = self.codec.decode(context[length:])
        else:  # rewritten: the prompt, and what the policy wrote last
            text = self.codec.decode(context[self._prompt_tokens :])
            messages, addition = [{"role": "assistant", "content": text}], ""
        return [*messages, {"role": "user", "content": addition if addition.strip() else GO_ON}]


def turn_seed(seed: int, turn: int) -> int:
    """A seed of 31 bits for each turn of an episode."""
    digest = hashlib.sha256(f"{seed}/{turn}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def read_chat(data: Any) -> Reply:
    """The reply in an answer of the chat API. Raises ValueError if there is none, or an empty one."""
    choice = first_choice(data)
    content = message_text(choice)
    if content is None and choice.get("finish_reason") == "content_filter":
        content = _WITHHELD
    if content is None:
        raise ValueError("its message has no content")
    if not content.strip():
        raise ValueError("its message is empty")
    return Reply(well_formed(content), **finish_fields(choice))


def close_at_stop(reply: Reply, protocol: Protocol, stop: Sequence[str]) -> str:
    """The reply's text up to and with the first stop string, which is put back if the endpoint has left it
    out. Nothing is added to a text that ended because it was too long."""
    text = reply.text
    ends = [start + len(string) for string in stop if (start := text.find(string)) >= 0]
    if ends:
        return text[: min(ends)]
    if reply.finish == "length":
        return text
    if reply.knows_stop:
        return text + (reply.stopped_at if reply.stopped_at in stop else "")
    return text + _missing_closing_tag(text, protocol)


def _missing_closing_tag(text: str, protocol: Protocol) -> str:
    """The closing tag of the block that acts and is open at the end of the text; empty if none is. A tag
    behind its opening shows that the opening was only mentioned (`<think> I could <search> </think>`)."""
    block = max(protocol.acting, key=lambda block: text.rfind(block.open))
    start = text.rfind(block.open)
    if start < 0:
        return ""
    body = text[start + len(block.open) :]
    tags = (tag for other in protocol.blocks for tag in (other.open, other.close))
    was_cut = block.close in protocol.stop and not any(tag in body for tag in tags)
    return block.close if was_cut else ""


def _without_opening(text: str, opening: str) -> str:
    """A first turn without the opening that the prompt has already, if the model has repeated it."""
    opening, start = opening.strip(), text.lstrip()
    return start.removeprefix(opening) if opening and start.startswith(opening) else text
