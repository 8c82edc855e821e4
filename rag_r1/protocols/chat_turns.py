"""Derives the text between two turns from a model's chat template.

In a protocol with `turns: chat`, every turn of the policy is a message with the role `assistant`, and every
result of a call is a message with the role `tool`. Between two turns the template writes the end of the
policy's turn, the results with a header and with text around each of them, and the header of the next turn:

    <|im_end|>
    <|im_start|>user
    <tool_response>
    RESULT
    </tool_response><|im_end|>
    <|im_start|>assistant

An episode never renders a conversation with the template: sampled text would be encoded again, and templates
may change earlier messages. Instead, `derive_chat_turns` renders made-up conversations once, when an agent is
set up, and cuts the strings between the turns out of them. Then it compares a conversation of three turns
with one that is assembled from these strings. If the two differ, the template is refused: a server behind a
chat API would show the policy another context than the one that it was trained in.

What the policy reads after a turn without an action has the role `tool`, too. A message with the role `user`
would not work: Qwen3's template removes `<think>` from all turns before the last message of the user.

Some templates quote a result as a JSON string (Llama 3.1). Templates that change it in another way are
refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rag_r1.protocols.neutraliser import is_ordinary

Message = Mapping[str, Any]
#: Renders messages and the schemas of tools to the text that ends where the next turn begins.
Render = Callable[[Sequence[Message], Sequence[Message]], str]

#: Results with characters that templates tend to change.
_RESULTS = ('result one "q" \\ <b>\nè', 'result two {"a": 1}\n& more', "result three")
_PROBE_TOOL = "a_tool_for_probing"
#: Most characters of a template's text that an error message quotes.
_SHOWN = 60


class ChatTemplateError(ValueError):
    """Raised for a chat template that cannot be used for turns; `remedy` says what to do about it."""

    def __init__(self, problem: str):
        super().__init__(problem)
        self.remedy = (
            "use a model or a chat template (custom_chat_template) with tools that writes earlier turns "
            "unchanged, or a protocol without `turns: chat`, such as agentic_rag_en"
        )


@dataclass(frozen=True)
class ChatTurns:
    """The strings that a template writes between two turns."""

    #: The control token with which the policy ends a turn.
    end_token: str
    #: The text before the first result, which begins with the end token.
    before: str
    #: The text between two results.
    between: str
    #: The text after the last result, up to where the next turn begins.
    after: str
    #: Whether results are written as JSON strings.
    quoted: bool = False

    def observation(self, results: Sequence[str]) -> str:
        """Return the text between two turns, with these results in it."""
        return self.before + self.between.join(map(self.written, results)) + self.after

    def written(self, result: str) -> str:
        """Return a result as the template writes it."""
        return _written(result, self.quoted)

    @property
    def delimiters(self) -> set[str]:
        """The lines of these strings that are not just ordinary words. In a result, such a line could look
        like the end of the message."""
        lines = "\n".join((self.before, self.between, self.after)).split("\n")
        return {line.strip() for line in lines if not is_ordinary(line.strip())}


def derive_chat_turns(
    render: Render,
    prompt: Sequence[Message],
    turn: Callable[[int], str],
    tools: Sequence[Message],
    control: Collection[str],
) -> ChatTurns:
    """Derive the strings that the template `render` writes between turns.

    `prompt` has the messages that ask a question, `turn(n)` returns an example of the policy's nth turn,
    `tools` are the schemas of the tools, and `control` the control tokens of the tokenizer. Raises
    ChatTemplateError if the template cannot be used.
    """

    def rendered(*messages: Message) -> str:
        return _rendered(render, [*prompt, *messages], tools)

    _check_tools(render, prompt)
    start = rendered()
    turn_text = _unopened_turn(start, turn)
    examples = [{"role": "assistant", "content": turn(n)} for n in (1, 2)]
    results = [{"role": "tool", "content": result} for result in _RESULTS]
    first_turn = start + turn_text(1)
    one_result = _text_after(rendered(examples[0], results[0]), first_turn)
    is_quoted = _RESULTS[0] not in one_result
    two_results = _text_after(rendered(examples[0], *results[:2]), first_turn)
    turns = _split_results(one_result, two_results, is_quoted)
    ends = [token for token in control if turns.before.startswith(token)]
    if not ends:
        raise ChatTemplateError(
            f"the chat template ends a turn with {turns.before[:_SHOWN]!r}, which is not a control token"
        )
    turns = replace(turns, end_token=max(ends, key=len))
    dialogue = first_turn + turns.observation(_RESULTS[:1]) + turn_text(2) + turns.observation(_RESULTS[1:])
    _text_after(rendered(examples[0], results[0], examples[1], *results[1:]), dialogue)
    return turns


def _written(result: str, quoted: bool) -> str:
    """Return a result as it is, or as the inside of a JSON string if templates quote it so."""
    return json.dumps(result, ensure_ascii=False)[1:-1] if quoted else result


def _rendered(render: Render, messages: Sequence[Message], tools: Sequence[Message]) -> str:
    """Return the text of the messages. Raises ChatTemplateError if the template refuses them."""
    try:
        return render(messages, tools)
    except Exception as error:  # a template is a program and may raise anything
        roles = ", ".join(str(message["role"]) for message in messages)
        raise ChatTemplateError(
            f"the chat template refuses messages of the roles {roles}: {error}"
        ) from error


def _check_tools(render: Render, prompt: Sequence[Message]) -> None:
    """Raise ChatTemplateError unless the rendered prompt shows the tools."""
    parameters = {"type": "object", "properties": {}}
    function = {"name": _PROBE_TOOL, "description": "None.", "parameters": parameters}
    if _PROBE_TOOL not in _rendered(render, prompt, [{"type": "function", "function": function}]):
        raise ChatTemplateError("the chat template does not show tools: it leaves `tools=` out")


def _unopened_turn(start: str, turn: Callable[[int], str]) -> Callable[[int], str]:
    """Return `turn` without the beginning of a turn that the template writes itself, at the end of `start`:
    some templates open `<think>`."""
    example = turn(1)
    n_opened = next(n for n in range(len(example), -1, -1) if start.endswith(example[:n]))
    return lambda n: turn(n)[n_opened:]


def _text_after(text: str, beginning: str) -> str:
    """Return what follows `beginning` in a text. Raises ChatTemplateError if the text begins otherwise, i.e.
    the template has changed earlier messages."""
    if text.startswith(beginning):
        return text[len(beginning) :]
    start = next((i for i, (a, b) in enumerate(zip(text, beginning, strict=False)) if a != b), len(text))
    written, expected = text[start : start + _SHOWN], beginning[start : start + _SHOWN]
    raise ChatTemplateError(f"the chat template rewrites earlier turns: {written!r} in place of {expected!r}")


def _split_results(one_result: str, two_results: str, quoted: bool) -> ChatTurns:
    """Return the strings around one and two results, without the end token. Raises ChatTemplateError if they
    cannot be told from the results."""
    first, second = (_written(result, quoted) for result in _RESULTS[:2])
    before, separator, after = one_result.partition(first)
    if not separator:
        raise ChatTemplateError(f"the chat template changes results of tools: {one_result[:_SHOWN]!r}")
    pattern = re.escape(before + first) + "(.*)" + re.escape(second + after)
    match = re.fullmatch(pattern, two_results, re.DOTALL)
    if match is None:
        raise ChatTemplateError("the chat template does not write two results in a row as it writes one")
    return ChatTurns("", before, match[1], after, quoted)
