"""Parses the text of one generated turn into an action.

Only text that the policy has written is parsed, so neither an example in the prompt nor a document can become
an action. Generation stops at the closing tag of a block that acts (a call, an answer, ...). If an engine
runs past it, the first closed block is the action, and the rest is ignored.

With `turns: chat`, a turn ends with the policy's end-of-turn token and may contain several blocks of calls,
which are made at once. The rest of such a turn is ignored, too.

If a block was opened more than once, it begins at its last opening tag, since the model has started over: in
`<search> a <search> b </search>` the query is `b`. An answer begins where the published scorer begins to read
it (`answer_opening`). In Search-R1 and RAG-R1 that is the first opening tag, so `<answer> a <answer> b
</answer>` is not a right answer if the gold is `b`; in R1-Searcher it is the last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import Any

from rag_r1.protocols.actions import (
    Action,
    Answer,
    Backtrack,
    Call,
    Invalid,
    Plan,
    Summary,
    Think,
    calls_action,
    well_formed,
)
from rag_r1.protocols.blocks import Block, CallFormat

#: A comma between queries. Between digits it is part of a number if exactly three digits follow: "1,000" is
#: one query, "1999,2001" are two.
_SEPARATOR = re.compile(r"(?<!\d),|,(?!\d{3}(?!\d))")
_QUOTED = re.compile(r'\s*"([^"]*)"\s*(?:,|$)')
#: A call as Agentic RAG-R1 writes it: `[Wiki_RAG]: key words`.
_NAMED = re.compile(r"\[([^\[\]\n]+)\]\s*:?(.*)", re.DOTALL)
#: Most levels of lists and objects in the arguments of a call.
_MAX_DEPTH = 32

#: The actions of blocks that contain only a text, by role.
_TEXT_ACTIONS: dict[str, Callable[[str], Action]] = {"answer": Answer, "plan": Plan, "think": Think}


def parse_turn(text: str, acting: Sequence[Block], answer_opening: str, multiple: bool = False) -> Action:
    """Return the action of one turn.

    `acting` are the blocks that act. `answer_opening` says whether an answer begins at its `first` or its
    `last` opening tag, and `multiple` whether the calls of a turn may be in several blocks.
    """
    end, block = _first_closing_tag(text, acting)
    if block is None:
        return Invalid("no closed search or answer")
    starts_first = block.role == "answer" and answer_opening == "first"
    start = text.find(block.open, 0, end) if starts_first else text.rfind(block.open, 0, end)
    if start < 0:
        return Invalid(f"{block.close} without {block.open}")
    body = text[start + len(block.open) : end].strip()
    if block.role == "summary":
        return Summary(body, block.span)
    if block.role == "backtrack":
        return Backtrack(body, block.pops)
    if block.call is None:
        return _TEXT_ACTIONS[block.role](body)
    try:
        calls = read_calls(body, block.call)
        if multiple:
            for further_body, form in _further_calls(text, end + len(block.close), acting):
                calls += read_calls(further_body, form)
    except ValueError as error:
        return Invalid(str(error))
    return calls_action(calls, block.call.max_calls) if calls else Invalid("empty query")


def call_start(text: str, acting: Sequence[Block]) -> int:
    """Return the position at which the first block that acts begins, if it is a block of calls; else the
    length of the text."""
    end, block = _first_closing_tag(text, acting)
    if block is None or block.call is None:
        return len(text)
    start = text.rfind(block.open, 0, end)
    return start if start >= 0 else len(text)


def _first_closing_tag(text: str, acting: Sequence[Block], position: int = 0) -> tuple[int, Block | None]:
    """Return the position of the first closing tag from `position` on, and its block; (-1, None) if no block
    is closed. If several tags match at one position, the earliest block in `acting` counts."""
    ends = [(end, i) for i, block in enumerate(acting) if (end := text.find(block.close, position)) >= 0]
    end, i = min(ends, default=(-1, None))
    return end, None if i is None else acting[i]


def _further_calls(text: str, position: int, acting: Sequence[Block]) -> Iterator[tuple[str, CallFormat]]:
    """Yield the body and the format of each closed block of calls from a position on, up to a block of
    another kind. Raises ValueError for a closing tag without an opening one."""
    while True:
        end, block = _first_closing_tag(text, acting, position)
        if block is None or block.call is None:
            return
        start = text.rfind(block.open, position, end)
        if start < 0:
            raise ValueError(f"{block.close} without {block.open}")
        yield text[start + len(block.open) : end].strip(), block.call
        position = end + len(block.close)


def read_calls(body: str, form: CallFormat) -> list[Call]:
    """Return the calls in the body of a block, which is written in one of these syntaxes (`form.syntax`):

        single   the query of one call of `form.tool`
        list     several such queries (see `split_queries`)
        named    `[tool]: query`
        json     an object, or a list of objects, with `name` and `arguments` (in Llama's templates
                 `parameters`): the form of Hermes, which Qwen's chat templates use too

    Raises ValueError if the body is not written in this way.
    """
    if form.syntax == "json":
        return _json_calls(body, form)
    tool = form.tool
    if form.syntax == "named":
        match = _NAMED.fullmatch(body)
        if match is None:
            raise ValueError("a call must begin with the name of a tool, as in [name]: words")
        tool = form.registered(well_formed(match[1]).strip())
        body = match[2].strip()
    return [Call(tool, {"query": query}) for query in split_queries(body, form)]


def _json_calls(body: str, form: CallFormat) -> list[Call]:
    """Return the calls in a JSON object or in a list of objects, with a result for each, also for equal
    ones: a policy assigns results to its calls by their order. Raises ValueError for anything else."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):  # deep nesting exhausts the stack of the JSON reader
        raise ValueError("a call must be JSON with a name and arguments") from None
    calls: list[Call] = []
    for item in value if isinstance(value, list) else [value]:
        item = item if isinstance(item, dict) else {}
        name, arguments = item.get("name"), item.get("arguments", item.get("parameters", {}))
        if not isinstance(name, str) or not name.strip() or not isinstance(arguments, dict):
            raise ValueError("a call must be JSON with a name and arguments")
        calls.append(Call(form.registered(well_formed(name).strip()), _checked_value(arguments)))
    return calls


def _checked_value(value: Any, depth: int = 0) -> Any:
    """Return a copy of a JSON value that every reader accepts, with `?` for lone surrogates.

    Raises ValueError for NaN, infinity and deep nesting. Later code (the check of the tool's schema, the
    record) would fail on these, which would look like a failure of the tool.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"the arguments of a call are nested more than {_MAX_DEPTH} deep")
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, float) and not isfinite(value):
        raise ValueError("the arguments of a call hold a number that JSON does not have")
    if isinstance(value, dict):
        return {well_formed(key): _checked_value(item, depth + 1) for key, item in value.items()}
    return [_checked_value(item, depth + 1) for item in value] if isinstance(value, list) else value


def split_queries(body: str, form: CallFormat) -> tuple[str, ...]:
    """Return the queries of a block, without empty ones and repetitions (ignoring letter case and white
    space).

    With the syntax `list`, RAG-R1's, queries are separated by commas, and a query with a comma is written in
    double quotes; or the block is a JSON list of strings. With `single` and `named` the body is one query.
    """
    items = _json_list(body) if form.syntax == "list" else [body]
    if items is None:
        items = _comma_list(body)
    deleted = dict.fromkeys(map(ord, form.removed_characters))
    unique: dict[str, str] = {}
    for query in (well_formed(item).translate(deleted).strip() for item in items):
        folded = " ".join(query.split())
        if query:
            unique.setdefault(folded.casefold(), folded if form.fold_white_space else query)
    return tuple(unique.values())


def _json_list(body: str) -> list[str] | None:
    """Return the strings of a JSON list, without its other items; None if `body` is not a JSON list."""
    if not body.startswith("["):
        return None
    try:
        items = json.loads(body)
    except (ValueError, RecursionError):  # deep nesting exhausts the stack of the JSON reader
        return None
    return [item for item in items if isinstance(item, str)]


def _comma_list(body: str) -> list[str]:
    """Return the queries between commas; a query in double quotes may contain commas itself."""
    queries: list[str] = []
    position = 0
    while position < len(body):
        quoted = _QUOTED.match(body, position)
        if quoted:
            queries.append(quoted[1])
            position = quoted.end()
            continue
        comma = _SEPARATOR.search(body, position)
        end = comma.start() if comma else len(body)
        queries.append(body[position:end])
        position = end + 1
    return queries
