"""Builds the text that a retriever receives for a query of the agent.

A sub-query such as "its director" is clear only beside the question that it serves. A retriever trained for
an agent therefore reads both (Agentic-R, arXiv 2601.11888). `build_retriever_query` is the one place that
joins them: rollouts, the making of training data, the training of a retriever and evaluation all call it, so
an encoder reads what it was trained on. With separator S, question Q, earlier queries h1, h2 and query q:

    plain        q
    agentic      Q S q              Agentic-R
    history      Q S h1 S h2 S q    its ablation, which was worse
    reasoning    R S q              R: the thought before the query (AgentIR, arXiv 2603.04384)

The separator belongs to the encoder: the manifest of an index has it, and the server reports it at `/ready`
with the encoder's length limit (`QueryFormat`). A text beyond that limit loses its end in the encoder, and
the query stands last. So what stands before it is shortened here: the oldest earlier queries go first, then
the question loses its last words, and a thought its first. The query is never shortened.

The agent has no tokenizer of the encoder. It counts bytes of UTF-8, of which every token has at least one,
and leaves room for the encoder's prefix and special tokens; so a text that fits here fits there. (A tokenizer
that replaces one character by several, such as a ligature by its letters, may need a few more.) This is
cautious: an English word is usually one or two tokens. Within 512 tokens most questions and queries fit all
the same; for thoughts, which are longer, build the index with a larger `--max-length`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rag_r1.protocols.actions import well_formed

Mode = Literal["plain", "agentic", "history", "reasoning"]
MODES: tuple[Mode, ...] = ("plain", "agentic", "history", "reasoning")
#: Tokens that encoders put around a text; BERT, RoBERTa and T5 need one or two, and others at most this many.
SPECIAL_TOKENS = 4


@dataclass(frozen=True)
class CallContext:
    """Where in an episode a query stands: the question, the queries of earlier turns in their order, and what
    the policy has thought since the last of them."""

    question: str
    history: tuple[str, ...] = ()
    reasoning: str = ""


@dataclass
class Context:
    """The context of the calls of a turn, for the tools that read it. `get` makes it when it is needed. The
    tool fills `sent`: query -> the text for which it searched instead."""

    get: Callable[[], CallContext]
    sent: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class QueryFormat:
    """The form in which an encoder needs its queries, from the manifest of its index, a server's `/ready`, or
    the manifest of a trained retriever.

    `max_length`: most tokens of the whole text; None: no limit. `query_prefix`: a text that the encoder's
    side puts before each query, so it is not added here. `mode`: what the encoder was trained to read; None:
    not known. `index_version`: the version of the index that the server serves; it changes with a reload.
    """

    separator: str
    max_length: int | None = None
    query_prefix: str = ""
    mode: Mode | None = None
    index_version: int | None = None

    @property
    def room(self) -> int | None:
        """Bytes of a text that is certain to fit; None: no limit."""
        if self.max_length is None:
            return None
        return max(0, self.max_length - SPECIAL_TOKENS - utf8_bytes(self.query_prefix))

    def query(self, context: CallContext, query: str, mode: Mode) -> str:
        """Returns the text to send for a query that stands in this context."""
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
        """Reads the format from a retrieval server's answer to `GET /ready`. `index`: the name of one of
        several indexes; None: the default index. Raises ValueError if the answer has no format, as of a BM25
        index or of another server than ours, and for a mode that is unknown here."""
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
    """The value if it is a whole number, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def utf8_bytes(text: str) -> int:
    """The length of a text in bytes; no tokenizer makes more tokens of it."""
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
    """Returns the text that a retriever is sent for `query` in a mode, as the top of the module describes
    them. Parts that are empty are left out with their separator.

    `history`: the queries before this one, oldest first. `room`: the longest text as `length` measures it, by
    default in bytes; None: no limit. A query that is longer itself is returned alone and whole. Raises
    ValueError for an unknown mode, and for an empty separator in a mode that needs one.
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
    """As many of the queries as fit, without the oldest ones."""
    return next((queries[n:] for n in range(len(queries)) if fits(queries[n:])), [])


def _joined(parts: Sequence[str], query: str, separator: str) -> str:
    return separator.join([*filter(None, parts), query])


def _shortened(text: str, fits: Callable[[str], bool], *, keep_end: bool) -> str:
    """The text, or as many of its first (or last) words as fit; of a text without a word that fits, such as
    one in Chinese, as many characters. A longer text must not fit where a shorter one does not."""
    if not text or fits(text):
        return text
    words = text.split()
    return _fitting_units(words, " ", fits, keep_end) or _fitting_units(text, "", fits, keep_end)


def _fitting_units(units: Sequence[str], separator: str, fits: Callable[[str], bool], keep_end: bool) -> str:
    """As many of the first (or last) units as fit, found by bisection; an empty text if not even one fits."""

    def part(count: int) -> str:
        return separator.join(units[len(units) - count :] if keep_end else units[:count]).strip()

    low, high = 0, len(units) - 1  # `low` units fit (or are 0), more than `high` do not
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(part(middle)) else (low, middle - 1)
    return part(low)
