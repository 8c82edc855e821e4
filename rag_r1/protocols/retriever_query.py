"""Builds the text that a retriever receives for a query of the agent.

A sub-query such as "its director" can only be understood together with the question that it serves. A
retriever that is trained for an agent therefore reads both (Agentic-R, arXiv 2601.11888).
`build_retriever_query` is the only place that joins them. Rollouts, evaluation, and the training of a
retriever with its data all use it, so an encoder reads what it was trained on. With separator S, question Q,
earlier queries h1, h2 and query q:

    plain        q
    agentic      Q S q              Agentic-R
    history      Q S h1 S h2 S q    Agentic-R's ablation, which was worse
    reasoning    R S q              R: the thought before the query (AgentIR, arXiv 2603.04384)

The separator belongs to the encoder. It is in the manifest of an index, and the server reports it at `/ready`
together with the encoder's length limit (`QueryFormat`). An encoder cuts off the end of a text that is too
long, which is where the query is. So the part before the query is shortened here: first the oldest earlier
queries are dropped, then the question loses its last words; a thought loses its first words. The query is
never shortened.

The agent does not have the encoder's tokenizer. It counts bytes of UTF-8, since every token has at least one,
and leaves room for the encoder's prefix and special tokens. So a text that fits here fits the encoder, unless
its tokenizer replaces one character by several, such as a ligature by its letters. This count is cautious,
since an English word is usually one or two tokens, but most questions and queries fit into 512 tokens all the
same. For thoughts, which are longer, build the index with a larger `--max-length`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from rag_r1.protocols.actions import well_formed

Mode = Literal["plain", "agentic", "history", "reasoning"]
MODES: tuple[Mode, ...] = get_args(Mode)
#: Most tokens that encoders add around a text; BERT, RoBERTa and T5 add one or two.
SPECIAL_TOKENS = 4


@dataclass(frozen=True)
class CallContext:
    """The part of an episode before a query."""

    question: str
    #: The queries of the earlier turns, in order.
    history: tuple[str, ...] = ()
    #: What the policy has thought since the last of them.
    reasoning: str = ""


@dataclass
class Context:
    """Passed with its calls to a tool that reads their context."""

    #: Returns the context, and is called only when a tool needs it.
    get: Callable[[], CallContext]
    #: Filled by the tool: for each query, the text that it sent instead.
    sent: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class QueryFormat:
    """The form in which an encoder needs its queries. It is read from the manifest of an index or of a
    trained retriever, or from a server's `/ready`."""

    separator: str
    #: Most tokens of the whole text; None: no limit.
    max_length: int | None = None
    #: A text that the server puts before each query; it is not added here.
    query_prefix: str = ""
    #: What the encoder was trained to read; None if that is not known.
    mode: Mode | None = None
    #: The version of the index that the server serves; it changes with a reload.
    index_version: int | None = None

    @property
    def room(self) -> int | None:
        """Most bytes of a text that certainly fits; None: no limit."""
        if self.max_length is None:
            return None
        return max(0, self.max_length - SPECIAL_TOKENS - utf8_bytes(self.query_prefix))

    def query(self, context: CallContext, query: str, mode: Mode) -> str:
        """Return the text to send for a query in this context. Raises ValueError like
        `build_retriever_query`."""
        return build_retriever_query(
            context.question,
            query,
            mode,
            self.separator,
            history=context.history,
            reasoning=context.reasoning,
            room=self.room,
        )

    @classmethod
    def of_ready(cls, ready: Any, index: str | None = None) -> QueryFormat:
        """Read the format from a retrieval server's answer to `GET /ready`. `index` names one of several
        indexes, None the default one. Raises ValueError if the mode is unknown, or if the answer has no
        format, as with a BM25 index or a server of another project."""
        status = ready
        if index is not None and isinstance(ready, dict):
            indexes = ready.get("indexes")
            status = indexes.get(index) if isinstance(indexes, dict) else None
        if not isinstance(status, dict):
            raise ValueError("the server's /ready describes no index" + (f" {index!r}" if index else ""))
        separator = status.get("separator")
        if not isinstance(separator, str) or not separator:
            kind = status.get("backend")
            description = f", of kind {kind[:40]}," if isinstance(kind, str) else ""
            raise ValueError(f"the server's index{description} has no separator")
        mode = status.get("query_mode")
        if isinstance(mode, str) and mode not in MODES:
            raise ValueError(f"the server's index needs queries of the mode {mode[:40]!r}, unknown here")
        prefix = status.get("query_prefix")
        max_length = _whole_number(status.get("max_length"))
        return cls(
            separator=separator,
            max_length=max_length if max_length is None or max_length > 0 else None,
            query_prefix=prefix if isinstance(prefix, str) else "",
            mode=mode if mode in MODES else None,
            index_version=_whole_number(status.get("index_version")),
        )


def _whole_number(value: Any) -> int | None:
    """Return the value if it is a whole number, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def utf8_bytes(text: str) -> int:
    """Return the length of a text in bytes, which is an upper bound for its number of tokens."""
    return len(text.encode("utf-8", "replace"))


def build_retriever_query(
    question: str,
    query: str,
    mode: Mode,
    separator: str,
    *,
    history: Sequence[str] = (),
    reasoning: str = "",
    room: int | None = None,
    length: Callable[[str], int] = utf8_bytes,
) -> str:
    """Return the text that a retriever is sent for `query` in one of the modes above. Empty parts are left
    out together with their separator.

    `history` has the queries before this one, oldest first. `room` limits the length of the text, as `length`
    measures it (by default in bytes); None: no limit. A query that is longer is returned whole and alone.
    Raises ValueError for an unknown mode, and for an empty separator in a mode that needs one.
    """
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r} of a retriever's query: use one of {', '.join(MODES)}")
    if mode == "plain":
        return query
    if not separator:
        raise ValueError(f"the mode {mode} needs a separator, and it is empty")

    def fits(parts: Sequence[str]) -> bool:
        return room is None or length(separator.join([*parts, query])) <= room

    if mode == "reasoning":
        thought = well_formed(reasoning).strip()
        return _joined([_shortened(thought, lambda part: fits([part]), keep_end=True)], query, separator)
    topic = well_formed(question).strip()
    queries = [well_formed(earlier).strip() for earlier in history] if mode == "history" else []
    newest = _newest(list(filter(None, queries)), lambda part: fits([*filter(None, [topic]), *part]))
    topic = _shortened(topic, lambda part: fits([part, *newest]), keep_end=False)
    return _joined([topic, *newest], query, separator)


def _newest(queries: list[str], fits: Callable[[list[str]], bool]) -> list[str]:
    """Return the newest of the queries, as many as fit."""
    return next((queries[start:] for start in range(len(queries)) if fits(queries[start:])), [])


def _joined(parts: Sequence[str], query: str, separator: str) -> str:
    """Return the parts that are not empty, and the query, with the separator between them."""
    return separator.join([*filter(None, parts), query])


def _shortened(text: str, fits: Callable[[str], bool], *, keep_end: bool) -> str:
    """Return the text, or as many of its first (or last) words as fit. If not even one word fits, as in
    Chinese, which has no spaces, characters are counted instead. `fits` must be monotonic in the length."""
    if not text or fits(text):
        return text
    words = text.split()
    return _fitting_units(words, " ", fits, keep_end) or _fitting_units(text, "", fits, keep_end)


def _fitting_units(units: Sequence[str], separator: str, fits: Callable[[str], bool], keep_end: bool) -> str:
    """Return as many of the first (or last) units as fit, found by bisection; "" if not even one fits."""

    def part(count: int) -> str:
        return separator.join(units[len(units) - count :] if keep_end else units[:count]).strip()

    low, high = 0, len(units) - 1  # `low` units fit (or are 0), more than `high` do not
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(part(middle)) else (low, middle - 1)
    return part(low)
