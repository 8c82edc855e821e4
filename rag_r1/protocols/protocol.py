"""A protocol: the dialect in which a policy and its environment communicate.

Everything that differs between Search-R1, RAG-R1, R1-Searcher and similar systems is data: a YAML file in
this folder with the prompt, the blocks, the syntax of calls and the template of observations, which loader.py
reads. Data processing, rollouts, rewards, evaluation and serving all use the same `Protocol`:

    messages      question -> chat messages
    prompt_ids    chat messages -> token ids
    parse         text of one generated turn -> action
    observation   results of calls -> text
    hint          the text after a turn without an action

Turns have one of two forms. With `turns: text`, the whole trajectory is one message of the model, and
observations are text inside it. With `turns: chat`, each turn and each result is a message, and the text
between them is what the model's chat template writes there (chat_turns.py).

Documents are data: no protocol tag and no control token survives in an observation (neutraliser.py). A
question is data, too: `messages` inserts it unchanged, and `harmless` neutralises it once the tokenizer is
known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import starmap
from typing import Any, Literal

from rag_r1.protocols.actions import Action, Document, Failure
from rag_r1.protocols.blocks import Block, CallFormat, Tags
from rag_r1.protocols.chat_turns import ChatTurns, Render, derive_chat_turns
from rag_r1.protocols.neutraliser import Neutraliser, replace_question
from rag_r1.protocols.parser import call_start, parse_turn

#: A field in the template of a document.
_FIELD = re.compile(r"\{(rank|id|title|text|contents)\}")


@dataclass(frozen=True)
class ObservationFormat:
    """How the results of calls become text."""

    #: The observation, with {body}. With `turns: chat` the model's chat template takes its place.
    template: str
    #: `text`: one document after another; `json`: queries and documents as one indented object (RAG-R1's form
    #: for parallel queries).
    body: Literal["text", "json"]
    #: One document, with {contents} or {title} and {text}, with {rank}, and with {id}: of a web search, the
    #: address.
    document: str
    #: The text between two documents.
    separator: str
    #: Whether JSON has `\u` escapes in place of characters that are not ASCII.
    ascii: bool = True
    #: Where white space is removed: at both `ends` of a query's documents, or where each document `starts`.
    trim: Literal["ends", "starts"] = "ends"
    #: The whole observation if there is no document to show; None: an empty body. With `turns: chat`, the
    #: whole result of a call without documents.
    nothing_found: str | None = None


@dataclass(frozen=True)
class Protocol:
    """One dialect, as `load_protocol` loads it."""

    name: str
    #: The paper or repository that the dialect is from.
    source: str
    system_prompt: str | None
    #: The prompt, with {question}.
    user_prompt: str
    #: The blocks, with at least one for each of the roles think, call, observation and answer.
    blocks: tuple[Block, ...]
    format: ObservationFormat
    #: What the policy reads after a turn without an action; None: such a turn ends the episode.
    invalid_hint: str | None
    #: Control tokens of the tokenizer, which are neutralised; see `with_special_tokens`.
    special_tokens: tuple[str, ...] = ()
    #: `chat`: the prompt is written by the model's chat template; `text`: it is plain text, for a base model.
    prompt_form: Literal["chat", "text"] = "chat"
    #: The beginning of the policy's first turn that is already in the prompt, e.g. `<think>`.
    opening: str = ""
    #: Which opening tag of a turn begins its answer.
    answer_opening: Literal["first", "last"] = "first"
    #: Whether the policy answers its searches itself (SSRL). Then generation does not stop at a call, no tool
    #: is called, and the observations are generated text, which is trained on.
    own_observations: bool = False
    #: Whether turns are parts of one text, or messages of the model's chat template.
    turns: Literal["text", "chat"] = "text"
    #: What the model's chat template writes between turns (see `in_chat`); None while the model is not known.
    chat_turns: ChatTurns | None = None

    @cached_property
    def tags(self) -> Tags:
        """The tags of the four blocks that every protocol has."""
        return Tags(*(self._first(role) for role in ("think", "call", "observation", "answer")))

    @property
    def queries(self) -> CallFormat:
        """The call format of the first call block, which is the search block."""
        call = self._first("call").call
        assert call is not None  # the loader gives every block of this role a format
        return call

    @property
    def max_queries(self) -> int:
        """Most calls in one turn."""
        return self.queries.max_calls

    @cached_property
    def acting(self) -> tuple[Block, ...]:
        """The blocks that end a turn. Generation stops at their closing tags, except after a call in a chat
        turn, where further calls may follow."""
        stops = (block for block in self.blocks if block.stop)
        return tuple(block for block in stops if block.call is None or not self.own_observations)

    @cached_property
    def stop(self) -> tuple[str, ...]:
        """Strings after which generation ends; they are part of the output. A chat turn also ends where the
        policy begins to write an observation, which is the environment's part."""
        if self.turns == "chat":
            return (*(block.close for block in self.acting if block.call is None), self.tags.information.open)
        return tuple(block.close for block in self.acting)

    @property
    def end_token(self) -> str:
        """The token with which the policy ends a chat turn; empty if turns are text."""
        return self.chat_turns.end_token if self.chat_turns else ""

    @property
    def rewrites_context(self) -> bool:
        """Whether turns can rewrite the context, so that a trajectory may have several training rows."""
        return any(block.role in ("summary", "backtrack") for block in self.blocks)

    @property
    def tools_called(self) -> list[str]:
        """The tools that the protocol itself names: those that `single` and `list` blocks call and, for the
        other syntaxes, those to which it gives another name."""
        tools: dict[str, None] = {}
        for call in (block.call for block in self.blocks if block.call is not None):
            is_bound = call.syntax in ("single", "list")
            tools.update(dict.fromkeys([call.tool] if is_bound else [tool for _, tool in call.names]))
        return list(tools)

    def simulated(self, text: str) -> int:
        """Return how many observations the policy has written itself in a turn; 0 unless
        `own_observations`."""
        information = self.tags.information
        return min(map(text.count, (information.open, information.close))) if self.own_observations else 0

    def _first(self, role: str) -> Block:
        """Return the first block with this role."""
        return next(block for block in self.blocks if block.role == role)

    def messages(self, question: str) -> list[dict[str, str]]:
        """Return the chat messages that ask the question."""
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        return [*system, {"role": "user", "content": self.user_prompt.replace("{question}", question)}]

    def harmless(self, messages: Sequence[Any], question: str) -> list[Any]:
        """Return the messages with the question in them neutralised."""
        return replace_question(messages, question, self.neutralise(question))

    def prompt_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        chat: Callable[[Sequence[Mapping[str, Any]]], list[int]],
        encode: Callable[[str], list[int]],
        start: Sequence[int] = (),
    ) -> list[int]:
        """Return the token ids of a prompt, up to where the policy continues its first turn.

        `chat` encodes messages with the chat template, including its generation prompt; `encode` encodes a
        text without special tokens. A prompt in the form `text` is encoded as one text, after the ids in
        `start` (the model's beginning-of-sequence token, if it has one).
        """
        if self.prompt_form == "text":
            return [*start, *encode("".join(message["content"] for message in messages) + self.opening)]
        return [*chat(messages), *(encode(self.opening) if self.opening else ())]

    def parse(self, text: str) -> Action:
        """Return the action in the text of one generated turn."""
        return parse_turn(text, self.acting, self.answer_opening, multiple=self.turns == "chat")

    def thought(self, text: str) -> str:
        """Return the text of a turn before its first call, without the tags of thoughts and plans."""
        thought = text[: call_start(text, self.acting)]
        for block in self.blocks:
            if block.role in ("think", "plan"):
                thought = thought.replace(block.open, " ").replace(block.close, " ")
        return thought.strip()

    def observation(self, queries: Sequence[str], results: Sequence[Sequence[Document] | Failure]) -> str:
        """Return the text that answers the calls of a turn, with documents neutralised. `queries` has one
        text for each call (`Call.text`). Raises ValueError unless there is a result for each of them."""
        if len(queries) != len(results):
            raise ValueError(f"{len(queries)} queries but {len(results)} results")
        if self.turns == "chat":
            return self._as_messages(
                [self.neutralise(self._result_text(result)).strip() for result in results]
            )
        has_text = any(isinstance(result, Failure) or result for result in results)
        if self.format.nothing_found is not None and not has_text:
            return self.format.nothing_found
        texts = [self._result_text(result) for result in results]
        if self.format.body == "json":
            lists = (self._json_list("query", queries), self._json_list("documents", texts))
            body = "{\n" + ",\n".join(lists) + "\n}"
        else:
            body = self.format.separator.join(texts)
        return self.format.template.replace("{body}", self.neutralise(body))

    def _json_list(self, key: str, texts: Sequence[str]) -> str:
        """Return a member of a JSON object, written as by `json.dumps` with an indent of 2, but faster."""
        items = ",".join(f"\n    {json.dumps(text, ensure_ascii=self.format.ascii)}" for text in texts)
        return f'  "{key}": ' + (f"[{items}\n  ]" if texts else "[]")

    @property
    def hint(self) -> str | None:
        """The text that the policy reads after a turn without an action; None: the episode ends."""
        if self.turns == "chat" and self.invalid_hint is not None:
            return self._as_messages([self.invalid_hint])
        return self.invalid_hint

    def _as_messages(self, results: Sequence[str]) -> str:
        """Return results as messages of the model's chat template or, while the model is not known, in the
        protocol's own template."""
        if self.chat_turns is not None:
            return self.chat_turns.observation(results)
        return "\n".join(self.format.template.replace("{body}", result) for result in results)

    def _result_text(self, result: Sequence[Document] | Failure) -> str:
        """Return the documents of one call as a text, or the reason of its failure."""
        if isinstance(result, Failure):
            return result.reason
        if self.turns == "chat" and not result and self.format.nothing_found is not None:
            return self.format.nothing_found
        text = self.format.separator.join(starmap(self._document_text, enumerate(result, 1)))
        return text.strip() if self.format.trim == "ends" else text

    def render_document(self, rank: int, document: Document) -> str:
        """Return one document as it appears in an observation, escaped and neutralised; `rank` counts from
        1."""
        text = self._document_text(rank, document)
        if self.format.body == "json":
            text = json.dumps(text, ensure_ascii=self.format.ascii)[1:-1]
        text = self.neutralise(text)
        return self.chat_turns.written(text) if self.chat_turns else text

    def _document_text(self, rank: int, document: Document) -> str:
        """Return a document in the protocol's template; a `verbatim` one as it is."""
        if document.verbatim:
            return document.contents
        if self.format.trim == "starts":
            document = replace(document, contents=document.contents.lstrip())
        contents = {"title": document.title, "text": document.text, "contents": document.contents}
        fields = {"rank": str(rank), "id": " ".join(document.id.split()), **contents}
        # The template is filled in one pass, so that a `{text}` inside a title stays as it is.
        return _FIELD.sub(lambda match: fields[match[1]], self.format.document)

    def with_special_tokens(self, tokens: Iterable[str]) -> Protocol:
        """Return the same protocol, which also neutralises these strings (the `control_tokens` of a
        tokenizer)."""
        stripped = {token.strip() for token in tokens} - {""}
        return replace(self, special_tokens=tuple(sorted(stripped, key=lambda token: (-len(token), token))))

    def in_chat(self, render: Render, tools: Sequence[Mapping[str, Any]], control: Iterable[str]) -> Protocol:
        """Return the same protocol with the turns of a model's chat template, which is `render`. `tools` are
        the schemas of the tools, and `control` the `control_tokens` of the tokenizer, which are neutralised.
        Raises ChatTemplateError."""
        think, call = self.tags.think, self.tags.search

        def turn(number: int) -> str:
            example = json.dumps({"name": "search", "arguments": {"query": f"query {number}"}})
            thought = f"{think.open}\nThought {number}.\n{think.close}"
            return f"{thought}\n\n{call.open}\n{example}\n{call.close}"

        control = set(control)
        turns = derive_chat_turns(render, self.messages("Who wrote it?"), turn, tools, control)
        return replace(self.with_special_tokens(control | turns.delimiters), chat_turns=turns)

    @cached_property
    def neutralise(self) -> Neutraliser:
        """`neutralise(text)` returns a text with its tags and control tokens neutralised (neutraliser.py)."""
        tags = [string for block in self.blocks for string in (block.open, block.close)]
        return Neutraliser(tags, self.special_tokens)
