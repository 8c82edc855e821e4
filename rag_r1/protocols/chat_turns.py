"""The text that a model's chat template writes between turns, derived from the template itself.

In a protocol with `turns: chat` every turn of the policy is a message of the role `assistant`, and every
result of a call a message of the role `tool`. Between two turns the template writes the end of the policy's
turn, the header of the results, what stands around each of them, and the header of the next turn:

    <|im_end|>
    <|im_start|>user
    <tool_response>
    RESULT
    </tool_response><|im_end|>
    <|im_start|>assistant

An episode never renders a conversation: that would encode sampled text again, and templates change their
messages. `derive_chat_turns` renders made-up conversations once, when an agent is set up, cuts these strings
out of them, and then compares a conversation of three turns with the same one put together from the strings.
A template for which the two differ is refused: a server behind a chat API would show the policy another
context than the one that it was trained in.

Results have the role `tool`, and so has what the policy reads after a turn without an action. A message of
the user would not do: Qwen3's template takes `<think>` out of all turns before the last message of the user.

Some templates quote a result as a JSON string (Llama 3.1). Templates that do anything else to it are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rag_r1.protocols.neutraliser import is_ordinary

Message = Mapping[str, Any]
#: Messages and the schemas of tools -> text, up to where the next turn begins.
Render = Callable[[Sequence[Message], Sequence[Message]], str]

#: Results that a template may be tempted to change.
_RESULTS = ('result one "q" \\ <b>\nè', 'result two {"a": 1}\n& more', "result three")
_PROBE_TOOL = "a_tool_for_probing"
#: Characters of a text that a message shows.
_SHOWN = 60


class ChatTemplateError(ValueError):
    """The chat template cannot be used for turns; `remedy` says what to do."""

    def __init__(self, problem: str):
        super().__init__(problem)
        self.remedy = (
            "use a model or a chat template (custom_chat_template) with tools that writes earlier turns "
            "unchanged, or a protocol without `turns: chat`, such as agentic_rag_en"
        )


@dataclass(frozen=True)
class ChatTurns:
    """The strings between two turns. `end_token`: the control token with which the policy ends a turn, and
    with which `before` begins; `before` the first result, `between` two of them, and `after` the last, up to
    where the next turn begins; `quoted`: results are written as JSON strings."""

    end_token: str
    before: str
    between: str
    after: str
    quoted: bool = False

    def observation(self, results: Sequence[str]) -> str:
        """The text between two turns, with these results in it."""
        return self.before + self.between.join(map(self.written, results)) + self.after

    def written(self, result: str) -> str:
        """A result as the template writes it."""
        return _written(result, self.quoted)

    @property
    def marks(self) -> set[str]:
        """The lines of the strings that are more than ordinary words; in a result they could pass for the end
        of the message."""
        lines = "\n".join((self.before, self.between, self.after)).split("\n")
        return {line.strip() for line in lines if not is_ordinary(line.strip())}


def derive_chat_turns(
    render: Render,
    prompt: Sequence[Message],
    turn: Callable[[int], str],
    tools: Sequence[Message],
    control: Collection[str],
) -> ChatTurns:
    """Derives the strings that a template writes between turns.

    `render`: the template; `prompt`: messages that ask a question; `turn(n)`: an example of a policy's nth
    turn; `tools`: schemas of the tools; `control`: the tokenizer's control tokens. Raises ChatTemplateError
    for a template that cannot be used.
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
    return json.dumps(result, ensure_ascii=False)[1:-1] if quoted else result


def _rendered(render: Render, messages: Sequence[Message], tools: Sequence[Message]) -> str:
    """The text of the messages. Raises ChatTemplateError if the template refuses them."""
    try:
        return render(messages, tools)
    except Exception as error:  # a template is a program of the model's authors
        roles = ", ".join(str(message["role"]) for message in messages)
        raise ChatTemplateError(
            f"the chat template refuses messages of the roles {roles}: {error}"
        ) from error


def _check_tools(render: Render, prompt: Sequence[Message]) -> None:
    """Raises ChatTemplateError unless the prompt shows the tools that it is rendered with."""
    parameters = {"type": "object", "properties": {}}
    function = {"name": _PROBE_TOOL, "description": "None.", "parameters": parameters}
    if _PROBE_TOOL not in _rendered(render, prompt, [{"type": "function", "function": function}]):
        raise ChatTemplateError("the chat template does not show tools: it leaves `tools=` out")


def _unopened_turn(start: str, turn: Callable[[int], str]) -> Callable[[int], str]:
    """`turn` without what the header of a turn, the end of `start`, already holds of it: some templates open
    `<think>` themselves."""
    example = turn(1)
    n_opened = next(n for n in range(len(example), -1, -1) if start.endswith(example[:n]))
    return lambda n: turn(n)[n_opened:]


def _text_after(text: str, beginning: str) -> str:
    """The text that follows `beginning`. Raises ChatTemplateError if the template has changed the
    beginning."""
    if text.startswith(beginning):
        return text[len(beginning) :]
    start = next((i for i, (a, b) in enumerate(zip(text, beginning, strict=False)) if a != b), len(text))
    written, expected = text[start : start + _SHOWN], beginning[start : start + _SHOWN]
    raise ChatTemplateError(f"the chat template rewrites earlier turns: {written!r} in place of {expected!r}")


def _split_results(one_result: str, two_results: str, quoted: bool) -> ChatTurns:
    """The strings around one and two results, without the end token. Raises ChatTemplateError."""
    first, second = (_written(result, quoted) for result in _RESULTS[:2])
    before, separator, after = one_result.partition(first)
    if not separator:
        raise ChatTemplateError(f"the chat template changes results of tools: {one_result[:_SHOWN]!r}")
    pattern = re.escape(before + first) + "(.*)" + re.escape(second + after)
    match = re.fullmatch(pattern, two_results, re.DOTALL)
    if match is None:
        raise ChatTemplateError("the chat template does not write two results in a row as it writes one")
    return ChatTurns("", before, match[1], after, quoted)
