"""From the text of one generated turn to an action.

Only text that the policy itself wrote is ever parsed, so a prompt's example or a document cannot become an
action. Generation stops at the closing tag of a search or an answer; should an engine run past it, the first
closed block is the action and the rest is ignored.

Where a block was opened more than once, a search begins at its last opening tag: in `<search> a <search> b
</search>` the query is `b`, as a model that starts over means it. An answer begins where the published scorer
begins to read it (`answer_opening`): in Search-R1 and RAG-R1 at the first opening tag, so that `<answer> a
<answer> b </answer>` is not a right answer to a question whose gold is `b`; in R1-Searcher at the last.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from rag_r1.protocols.actions import Action, Answer, Invalid, Search, well_formed

# A comma between digits belongs to a number when just three follow: "1,000" is one query, "1999,2001" two.
_SEPARATOR = re.compile(r"(?<!\d),|,(?!\d{3}(?!\d))")
_QUOTED = re.compile(r'\s*"([^"]*)"\s*(?:,|$)')


@dataclass(frozen=True)
class QueryFormat:
    """How queries stand in a search block. `syntax`: see `split_queries`; `most`: queries a turn; `delete`:
    characters that are left out of a query; `fold`: white space inside becomes single blanks."""

    syntax: str
    most: int
    delete: str = ""
    fold: bool = False


def parse_turn(
    text: str, search: tuple[str, str], answer: tuple[str, str], queries: QueryFormat, answer_opening: str
) -> Action:
    """The action of one turn. `search`, `answer`: (opening, closing) tags; `answer_opening`: `first` or
    `last`."""
    closings = [(text.find(close), open_, close) for open_, close in (search, answer) if close in text]
    if not closings:
        return Invalid("no closed search or answer")
    end, open_, close = min(closings)
    first = close == answer[1] and answer_opening == "first"
    start = text.find(open_, 0, end) if first else text.rfind(open_, 0, end)
    if start < 0:
        return Invalid(f"{close} without {open_}")
    body = text[start + len(open_) : end].strip()
    if close == answer[1]:
        return Answer(body)
    asked = split_queries(body, queries)
    if not asked:
        return Invalid("empty query")
    return Search(asked[: queries.most], dropped=max(0, len(asked) - queries.most))


def split_queries(body: str, queries: QueryFormat) -> tuple[str, ...]:
    """The queries of a search block, without the empty ones and the repeats (in other letter case or white
    space too).

    `single`: the whole block is one query. `list`: RAG-R1's comma form; a query with a comma is written in
    double quotes, or the block is a JSON list of strings.
    """
    raw = [body] if queries.syntax == "single" else _json_list(body)
    if raw is None:
        raw = _comma_list(body)
    deleted = dict.fromkeys(map(ord, queries.delete))
    unique: dict[str, str] = {}
    for query in (well_formed(item).translate(deleted).strip() for item in raw):
        folded = " ".join(query.split())
        if query:
            unique.setdefault(folded.casefold(), folded if queries.fold else query)
    return tuple(unique.values())


def _json_list(body: str) -> list[str] | None:
    """The strings of a JSON list (other items are no queries), or None when `body` is not a JSON list."""
    if not body.startswith("["):
        return None
    try:
        items = json.loads(body)
    except (ValueError, RecursionError):  # hostile nesting exhausts the JSON reader's stack
        return None
    return [item for item in items if isinstance(item, str)]


def _comma_list(body: str) -> list[str]:
    items, position = [], 0
    while position < len(body):
        quoted = _QUOTED.match(body, position)
        if quoted:
            items.append(quoted[1])
            position = quoted.end()
            continue
        comma = _SEPARATOR.search(body, position)
        end = comma.start() if comma else len(body)
        items.append(body[position:end])
        position = end + 1
    return items
