"""Truncates search results so that the observation fits into its token budget.

There is one limit for the documents of each query and one for the observation as a whole; tags are never cut.

1. Within a query, documents are kept in the order of their ranks. The first that does not fit is shortened at
   a word boundary, and those ranked below it are dropped.
2. If the observation is still too long, it is filled rank by rank: the best documents of all queries, then
   their second ones, and so on. The documents of the first rank that does not fit share the tokens that are
   left. Those that need less than an equal share stay whole; the others are shortened.

Encoding takes most of the time, so an observation that fits without truncation is encoded only once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from rag_r1.protocols import Document, Failure, Protocol

#: A document that would have to be shortened to fewer tokens than this is dropped.
_MIN_TOKENS = 8
#: Each further attempt to shorten a text cuts this share more, beyond the measured excess. So even a hostile
#: text, with all its tokens at the beginning, is fitted in at most 1 / _EXTRA_CUT attempts.
_EXTRA_CUT = 1 / 32
#: An observation with more characters than this per token of its limit is hardly within it, so it is
#: truncated without encoding it as a whole first.
_MAX_CHARS_PER_TOKEN = 8

Encode = Callable[[str], list[int]]
Results = Sequence[Sequence[Document] | Failure]


class FittedObservation(NamedTuple):
    """An observation that fits into its budget."""

    #: The token ids of `text`.
    ids: list[int]
    #: The documents that it shows, a list for each query.
    documents: list[list[Document]]
    text: str


def fit_observation(
    protocol: Protocol,
    queries: Sequence[str],
    results: Results,
    encode: Encode,
    max_query_tokens: int,
    max_tokens: int,
) -> FittedObservation | None:
    """Return the observation for the results of a turn's calls in at most `max_tokens` tokens, or None if not
    even the tags without documents fit. `max_query_tokens` limits the documents of each query."""
    documents = [[] if isinstance(result, Failure) else list(result) for result in results]

    def render(visible: list[list[Document]]) -> str:
        shown = [r if isinstance(r, Failure) else docs for r, docs in zip(results, visible, strict=True)]
        return protocol.observation(queries, shown)

    text = render(documents)
    # An observation within both limits needs no check query by query.
    whole_limit = min(max_query_tokens, max_tokens)
    if len(text) <= _MAX_CHARS_PER_TOKEN * whole_limit:
        ids = encode(text)
        if len(ids) <= whole_limit:
            return FittedObservation(ids, documents, text)

    truncation = Truncation(protocol, encode)
    documents = [truncation.fit_query(query_documents, max_query_tokens) for query_documents in documents]
    return truncation.fit_observation(documents, render, max_tokens)


class Truncation:
    """Selects the documents that fit into an observation. The tokens of a document are counted as it appears
    there, and only once. In all methods `room` is the number of tokens that the documents may take."""

    def __init__(self, protocol: Protocol, encode: Encode):
        self.protocol = protocol
        self.encode = encode
        self._tokens: dict[tuple[int, Document], int] = {}

    def tokens(self, rank: int, document: Document) -> int:
        """Return the number of tokens of a document at a rank, which counts from 1."""
        if (rank, document) not in self._tokens:
            text = self.protocol.render_document(rank, document)
            self._tokens[rank, document] = len(self.encode(text))
        return self._tokens[rank, document]

    def fit_query(self, documents: Sequence[Document], room: int) -> list[Document]:
        """Return the best-ranked documents of one query that fit into `room` tokens."""
        selected: list[Document] = []
        for rank, document in enumerate(documents, 1):
            fitted = self.fit(rank, document, room)
            if fitted is not None:
                selected.append(fitted)
            if fitted is not document:
                break
            room -= self.tokens(rank, document)
        return selected

    def fit_observation(
        self, documents: list[list[Document]], render: Callable[[list[list[Document]]], str], max_tokens: int
    ) -> FittedObservation | None:
        """Return the observation with as much of each query's documents as fits into `max_tokens`, or None if
        not even the tags without documents fit. `render` makes the text of the observation from the documents
        to show for each query."""
        visible = documents
        room = max_tokens
        for attempt in count():
            text = render(visible)
            ids = self.encode(text)
            if len(ids) <= max_tokens:
                return FittedObservation(ids, visible, text)
            if room < 1:
                return None
            if attempt == 0:  # the documents may take what the tags leave
                room = max_tokens - len(self.encode(render([[] for _ in documents])))
            else:
                room = _smaller_size(room, 1 - (len(ids) - max_tokens) / room, attempt)
            if room < _MIN_TOKENS:
                room = 0
            visible = self.fit_ranks(documents, room)

    def fit_ranks(self, results: Sequence[Sequence[Document]], room: int) -> list[list[Document]]:
        """Return the documents that fit into `room` together, chosen rank by rank, as a list for each
        query."""
        by_query: list[list[Document]] = [[] for _ in results]
        for rank in range(1, max(map(len, results), default=0) + 1):
            if room < 1:
                break
            ranked = [(docs[rank - 1], query) for query, docs in enumerate(results) if len(docs) >= rank]
            # Shortest first, so that what a document does not need of its share goes to the others.
            ranked.sort(key=lambda entry: self.tokens(rank, entry[0]))
            fits = sum(self.tokens(rank, document) for document, _ in ranked) <= room
            share = room if fits else room // len(ranked)
            for number, (document, query) in enumerate(ranked, 1):
                fitted = self.fit(rank, document, share)
                if fitted is not None:
                    by_query[query].append(fitted)
                if fitted is document:
                    room -= self.tokens(rank, document)
                    share = room if fits or number == len(ranked) else room // (len(ranked) - number)
            if not fits:
                break
        return by_query

    def fit(self, rank: int, document: Document, room: int) -> Document | None:
        """Return the document if it fits, else as much of it as fits; None if too little of it would be
        left."""
        if self.tokens(rank, document) <= room:
            return document
        shorter = document
        for attempt in count():
            text = shorter.contents
            if room < _MIN_TOKENS or not text:
                return None
            text = text[: _smaller_size(len(text), room / self.tokens(rank, shorter), attempt)]
            # Cut at a word boundary, unless that loses half of the text (a long word, or no spaces at all).
            boundary = max(text.rfind(" "), text.rfind("\n"))
            shorter = replace(document, contents=text[:boundary] if boundary > len(text) // 2 else text)
            if self.tokens(rank, shorter) <= room:
                return shorter if shorter.contents.strip() else None


def _smaller_size(size: int, share: float, attempt: int) -> int:
    """Return the next size to try if about `share` of `size` fits: less than `size`, but not below 0."""
    return max(0, min(size - 1, int(size * share * (1 - attempt * _EXTRA_CUT))))
