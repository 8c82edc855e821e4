"""Truncates search results to an observation's token budget before they are encoded.

Two limits hold, one for each query's documents and one for the whole observation; tags always stay whole.
Within a query, whole documents are kept in rank order; the first that does not fit is shortened at a word
boundary, and the ones ranked below it are left out. If the observation as a whole is still too long, the
lowest ranks go first, whichever query they answer: every query's best document before any query's second.
The documents of the first rank that does not fit whole share what is left; those that need less than an equal
share of it stay whole, the others are shortened.

Encoding takes most of the time. So an observation that fits as it is is encoded only once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from rag_r1.protocols import Document, Failure, Protocol

#: A shortened document with fewer tokens than this is of no use and is left out.
_MIN_TOKENS = 8
#: Each further attempt cuts this share more than the measured excess, so that a hostile text (with all its
#: tokens at the beginning) is fitted in at most 1 / _EXTRA_CUT attempts.
_EXTRA_CUT = 1 / 32
#: An observation with more characters than this for each token of its limit is packed without encoding it
#: whole first.
_MAX_CHARS_PER_TOKEN = 8

Encode = Callable[[str], list[int]]
Results = Sequence[Sequence[Document] | Failure]


class FittedObservation(NamedTuple):
    """Token ids and text of an observation, and the documents that it shows, a list for each query."""

    ids: list[int]
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
    """Returns the observation within `max_tokens` tokens, or None if not even the bare tags fit.
    `max_query_tokens` limits the documents of each query; an observation that is within it as a whole is not
    checked query by query."""
    documents = [[] if isinstance(result, Failure) else list(result) for result in results]

    def render(visible: list[list[Document]]) -> str:
        shown = [r if isinstance(r, Failure) else docs for r, docs in zip(results, visible, strict=True)]
        return protocol.observation(queries, shown)

    text = render(documents)
    whole_limit = min(max_query_tokens, max_tokens)
    if len(text) <= _MAX_CHARS_PER_TOKEN * whole_limit:
        ids = encode(text)
        if len(ids) <= whole_limit:
            return FittedObservation(ids, documents, text)

    truncation = Truncation(protocol, encode)
    documents = [truncation.fit_query(query_documents, max_query_tokens) for query_documents in documents]
    return truncation.fit_observation(documents, render, max_tokens)


class Truncation:
    """Counts the tokens of documents as they will appear in the observation, each once, and selects those
    that fit. `room`: the tokens that there are for them."""

    def __init__(self, protocol: Protocol, encode: Encode):
        self.protocol = protocol
        self.encode = encode
        self._tokens: dict[tuple[int, Document], int] = {}

    def tokens(self, rank: int, document: Document) -> int:
        """The number of tokens of a document at a rank, counted from 1."""
        if (rank, document) not in self._tokens:
            text = self.protocol.render_document(rank, document)
            self._tokens[rank, document] = len(self.encode(text))
        return self._tokens[rank, document]

    def fit_query(self, documents: Sequence[Document], room: int) -> list[Document]:
        """The best-ranked documents of one query within `room` tokens."""
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
        """The observation with as much of each query's documents as fits, or None if not even the bare tags
        fit. `render`: the documents to show for each query -> the text of the observation."""
        visible = documents
        room = max_tokens
        for attempt in count():
            text = render(visible)
            ids = self.encode(text)
            if len(ids) <= max_tokens:
                return FittedObservation(ids, visible, text)
            if room < 1:
                return None
            if attempt == 0:  # the documents get what the bare tags leave
                room = max_tokens - len(self.encode(render([[] for _ in documents])))
            else:
                room = _smaller_size(room, 1 - (len(ids) - max_tokens) / room, attempt)
            if room < _MIN_TOKENS:
                room = 0
            visible = self.fit_ranks(documents, room)

    def fit_ranks(self, results: Sequence[Sequence[Document]], room: int) -> list[list[Document]]:
        """The documents of all queries, each in a list of its own, that fit into `room` together, rank by
        rank."""
        by_query: list[list[Document]] = [[] for _ in results]
        for rank in range(1, max(map(len, results), default=0) + 1):
            if room < 1:
                break
            ranked = [(docs[rank - 1], query) for query, docs in enumerate(results) if len(docs) >= rank]
            # Shortest first: the part of its share that a document does not need goes to the others.
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
        """The document if it fits, else as much of it as fits, or None if that is too little to be of use."""
        if self.tokens(rank, document) <= room:
            return document
        shorter = document
        for attempt in count():
            text = shorter.contents
            if room < _MIN_TOKENS or not text:
                return None
            text = text[: _smaller_size(len(text), room / self.tokens(rank, shorter), attempt)]
            # At a word boundary, unless that would lose half of the text (a long word, or no spaces at all).
            boundary = max(text.rfind(" "), text.rfind("\n"))
            shorter = replace(document, contents=text[:boundary] if boundary > len(text) // 2 else text)
            if self.tokens(rank, shorter) <= room:
                return shorter if shorter.contents.strip() else None


def _smaller_size(size: int, share: float, attempt: int) -> int:
    """The next size to try if about `share` of this one fits; less than `size`, not below 0."""
    return max(0, min(size - 1, int(size * share * (1 - attempt * _EXTRA_CUT))))
