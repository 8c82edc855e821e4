"""A protocol: the dialect in which a policy and its environment communicate.

Everything that differs between Search-R1, RAG-R1, R1-Searcher and similar systems is data: a YAML file in
this folder with the prompt, the blocks, the syntax of calls and the observation template (`loader.py` reads
it). The interface of a protocol is `messages` (question -> chat messages), `prompt_ids` (messages -> tokens),
`parse` (one generated turn -> action), `observation` (search results -> text) and `hint` (what follows a
turn without an action). Data processing, rollout, rewards, evaluation and serving all use the same object.

Turns have one of two forms. With `turns: text` the whole trajectory is one message of the model, and an
observation is text inside it. With `turns: chat` each turn is a message, each result another one, and what
stands between them is what the model's own chat template writes there (chat_turns.py).

Documents are data: `observation` renders them so that no protocol tag and no control token survives in them
(neutraliser.py). A question is data too: `harmless` neutralises it once the tokenizer is known; `messages`
inserts it unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import starmap
from typing import Any

from rag_r1.protocols.actions import Action, Document, Failure
from rag_r1.protocols.blocks import Block, CallFormat, Tags
from rag_r1.protocols.chat_turns import ChatTurns, Render, derive_chat_turns
from rag_r1.protocols.neutraliser import Neutraliser, replace_question
from rag_r1.protocols.parser import call_start, parse_turn

#: A field of the template of a document.
_FIELD = re.compile(r"\{(rank|id|title|text|contents)\}")


@dataclass(frozen=True)
class ObservationFormat:
    """How results become text.

    `document`: one document, with {contents} or {title} and {text}, {rank}, and {id}, which for a web search
    is the address.
    `body`: `text` (one document after the other) or `json` (RAG-R1's parallel form: queries and documents as
    one indented object). `ascii`: in JSON, other characters are written as `\\u` escapes. `trim`: which white
    space is removed: at both `ends` of a query's documents as a whole, or where each document `starts`.
    `nothing_found`: the whole observation if there is no document to show; None: an empty body.

    With `turns: chat` every result is a message, in which the template of the model stands in the place of
    `template`; `nothing_found` is the whole result of a call without a document.
    """

    template: str
    body: str
    document: str
    separator: str
    ascii: bool = True
    trim: str = "ends"
    nothing_found: str | None = None


@dataclass(frozen=True)
class Protocol:
    """One dialect, with the interface that the top of the module describes; `load_protocol` loads one.

    `prompt_form`: `chat` (the model's chat template) or `text` (plain text, for a base model). `opening` is
    the beginning of the policy's first turn that is already in the prompt, e.g. `<think>`. `invalid_hint` is
    what the policy reads after a turn without an action; None (in a file: empty): such a turn ends the
    episode. `answer_opening`: which opening tag begins an answer, the `first` of the turn or the `last`.
    `blocks` has at least one block of each of the roles think, call, observation and answer.
    `own_observations`: the policy answers its searches itself (SSRL): nothing stops at a call, no tool is
    called, and what it writes as an observation is generated text, which is trained on.
    `turns`: `text` or `chat`; `chat_turns`: what the model's template writes between turns (`in_chat`), None
    while the model is not known.
    """

    name: str
    source: str
    system_prompt: str | None
    user_prompt: str
    blocks: tuple[Block, ...]
    format: ObservationFormat
    invalid_hint: str | None
    special_tokens: tuple[str, ...] = field(default=())
    prompt_form: str = "chat"
    opening: str = ""
    answer_opening: str = "first"
    own_observations: bool = False
    turns: str = "text"
    chat_turns: ChatTurns | None = field(default=None)

    @cached_property
    def tags(self) -> Tags:
        """The tags of the first block of each role that every protocol has."""
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
        """The blocks that act: at their closing tags a generation stops, except at that of a call in a chat
        turn, in which further calls may follow."""
        stops = (block for block in self.blocks if block.stop)
        return tuple(block for block in stops if block.call is None or not self.own_observations)

    @cached_property
    def stop(self) -> tuple[str, ...]:
        """Strings at which generation ends; they stay in the output, and nothing follows a closing tag. A
        chat turn also ends where the policy begins an observation, which is not its to write."""
        if self.turns == "chat":
            return (*(block.close for block in self.acting if block.call is None), self.tags.information.open)
        return tuple(block.close for block in self.acting)

    @property
    def end_token(self) -> str:
        """The token with which the policy ends a chat turn itself; empty if turns are text."""
        return self.chat_turns.end_token if self.chat_turns else ""

    @property
    def rewrites_context(self) -> bool:
        """Whether a turn can rewrite the context: then a trajectory may be several training rows."""
        return any(block.role in ("summary", "backtrack") for block in self.blocks)

    @property
    def tools_called(self) -> list[str]:
        """The tools that the protocol names: those to which `single` and `list` blocks are bound and, for the
        syntaxes in which each call names its tool, those to which the protocol gives another name."""
        tools: dict[str, None] = {}
        for call in (block.call for block in self.blocks if block.call is not None):
            is_bound = call.syntax in ("single", "list")
            tools.update(dict.fromkeys([call.tool] if is_bound else [tool for _, tool in call.names]))
        return list(tools)

    def simulated(self, text: str) -> int:
        """The number of observations that the policy has written itself in a turn (`own_observations`)."""
        information = self.tags.information
        return min(map(text.count, (information.open, information.close))) if self.own_observations else 0

    def _first(self, role: str) -> Block:
        return next(block for block in self.blocks if block.role == role)

    def messages(self, question: str) -> list[dict[str, str]]:
        """Returns chat messages that ask the question."""
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        return [*system, {"role": "user", "content": self.user_prompt.replace("{question}", question)}]

    def harmless(self, messages: Sequence[Any], question: str) -> list[Any]:
        """Returns the messages with the question in them neutralised; unchanged if there is nothing to
        neutralise."""
        return replace_question(messages, question, self.neutralise(question))

    def prompt_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        chat: Callable[[Sequence[Mapping[str, Any]]], list[int]],
        encode: Callable[[str], list[int]],
        start: Sequence[int] = (),
    ) -> list[int]:
        """Returns the token ids of a prompt, up to where the policy's first turn begins.

        `chat` encodes messages with the chat template, including its generation prompt; `encode` encodes a
        text without special tokens; `start` are the ids with which a plain text begins (the model's
        beginning-of-sequence token, if it has one). A prompt in the form `text` is encoded as one text.
        """
        if self.prompt_form == "text":
            return [*start, *encode("".join(message["content"] for message in messages) + self.opening)]
        return [*chat(messages), *(encode(self.opening) if self.opening else ())]

    def parse(self, text: str) -> Action:
        """The action in the text of one generated turn."""
        return parse_turn(text, self.acting, self.answer_opening, multiple=self.turns == "chat")

    def thought(self, text: str) -> str:
        """The policy's text in a turn before its first call, without the tags of thoughts and plans."""
        thought = text[: call_start(text, self.acting)]
        for block in self.blocks:
            if block.role in ("think", "plan"):
                thought = thought.replace(block.open, " ").replace(block.close, " ")
        return thought.strip()

    def observation(self, queries: Sequence[str], results: Sequence[Sequence[Document] | Failure]) -> str:
        """Returns the text that answers a turn's calls. `results` are aligned with `queries` (for a call of
        another tool: its `words`); documents are neutralised."""
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
        """A member of the JSON object, as `json.dumps` writes it with an indent of 2, but faster."""
        items = ",".join(f"\n    {json.dumps(text, ensure_ascii=self.format.ascii)}" for text in texts)
        return f'  "{key}": ' + (f"[{items}\n  ]" if texts else "[]")

    @property
    def hint(self) -> str | None:
        """The text that the policy reads after a turn without an action; None: the episode ends."""
        if self.turns == "chat" and self.invalid_hint is not None:
            return self._as_messages([self.invalid_hint])
        return self.invalid_hint

    def _as_messages(self, results: Sequence[str]) -> str:
        """Results as messages of the model's chat template; in the protocol's own template while the model's
        is not known."""
        if self.chat_turns is not None:
            return self.chat_turns.observation(results)
        return "\n".join(self.format.template.replace("{body}", result) for result in results)

    def _result_text(self, result: Sequence[Document] | Failure) -> str:
        """The documents of one call as a text, or the reason of its failure."""
        if isinstance(result, Failure):
            return result.reason
        if self.turns == "chat" and not result and self.format.nothing_found is not None:
            return self.format.nothing_found
        text = self.format.separator.join(starmap(self._document_text, enumerate(result, 1)))
        return text.strip() if self.format.trim == "ends" else text

    def render_document(self, rank: int, document: Document) -> str:
        """Returns one document as it appears in an observation, escaped and neutralised; `rank` counts from
        1."""
        text = self._document_text(rank, document)
        if self.format.body == "json":
            text = json.dumps(text, ensure_ascii=self.format.ascii)[1:-1]
        text = self.neutralise(text)
        return self.chat_turns.written(text) if self.chat_turns else text

    def _document_text(self, rank: int, document: Document) -> str:
        """The protocol's template for documents, filled in; the contents alone of a `verbatim` document."""
        if document.verbatim:
            return document.contents
        if self.format.trim == "starts":
            document = replace(document, contents=document.contents.lstrip())
        contents = {"title": document.title, "text": document.text, "contents": document.contents}
        fields = {"rank": str(rank), "id": " ".join(document.id.split()), **contents}
        # One pass over the template, so that a `{text}` inside a title is not filled in.
        return _FIELD.sub(lambda match: fields[match[1]], self.format.document)

    def with_special_tokens(self, tokens: Iterable[str]) -> Protocol:
        """Returns the same protocol, which also neutralises these strings (a tokenizer's
        `control_tokens`)."""
        stripped = {token.strip() for token in tokens} - {""}
        return replace(self, special_tokens=tuple(sorted(stripped, key=lambda token: (-len(token), token))))

    def in_chat(self, render: Render, tools: Sequence[Mapping[str, Any]], control: Iterable[str]) -> Protocol:
        """Returns the same protocol in the turns of a model's chat template. `render`: messages and the
        schemas of tools -> text; `control`: the tokenizer's `control_tokens`, which are neutralised. Raises
        ChatTemplateError."""
        think, call = self.tags.think, self.tags.search

        def turn(number: int) -> str:
            example = json.dumps({"name": "search", "arguments": {"query": f"query {number}"}})
            thought = f"{think.open}\nThought {number}.\n{think.close}"
            return f"{thought}\n\n{call.open}\n{example}\n{call.close}"

        control = set(control)
        turns = derive_chat_turns(render, self.messages("Who wrote it?"), turn, tools, control)
        return replace(self.with_special_tokens(control | turns.marks), chat_turns=turns)

    @cached_property
    def neutralise(self) -> Neutraliser:
        """`neutralise(text)` returns the text with tags and control tokens neutralised, as neutraliser.py
        describes, otherwise unchanged."""
        tags = [string for block in self.blocks for string in (block.open, block.close)]
        return Neutraliser(tags, self.special_tokens)
