"""Searches for a run, and keeps each result in its journal: a start that was killed searches nothing twice,
and builds the same requests to the reader from the same passages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rag_r1.protocols import Document, Failure
from rag_r1.questions.documents import SourcePassage, is_copy
from rag_r1.runs.json_lines import JsonLinesFile, LinePosition
from rag_r1.tools.retrieval.client import RetrievalClient, RetrieverConfig


class SearchFailedError(Exception):
    """The retrieval server did not answer a query; the next start of the command asks it again."""


class JournaledSearch:
    """Searches the first `config.topk` passages for a query. Raises RunError for a journal that cannot be
    used."""

    def __init__(self, config: RetrieverConfig, path: Path):
        self._places: dict[str, LinePosition] = {}
        self._lines = JsonLinesFile(path, self._note)
        self._client = RetrievalClient(config)

    async def __call__(self, queries: Sequence[str]) -> list[list[Document]]:
        """The passages for each query, best first. Raises SearchFailedError if the server does not answer."""
        missing = [query for query in dict.fromkeys(queries) if query not in self._places]
        results = await self._client.search(missing) if missing else []
        for query, documents in zip(missing, results, strict=True):
            if isinstance(documents, Failure):
                raise SearchFailedError(documents.detail)
            if query not in self._places:  # it may have been searched meanwhile, for another question
                self._lines.append({"query": query, "documents": [[d.id, d.contents] for d in documents]})
        return [
            [Document(*pair) for pair in self._lines.at(self._places[query])["documents"]]
            for query in queries
        ]

    async def close(self) -> None:
        """Close the connections and the journal."""
        await self._client.close()
        self._lines.close()

    def _note(self, line: Mapping[str, Any], place: LinePosition) -> None:
        if not isinstance(line["documents"], list):
            raise TypeError("`documents` is not a list")
        self._places[line["query"]] = place


def neighbours_of(
    passages: Sequence[SourcePassage],
    of_question: Sequence[Document],
    of_titles: Sequence[Sequence[Document]],
    limit: int,
) -> list[Document]:
    """The other passages that searches find, without copies of `passages`, each once: the first `limit` for
    the question, and half as many for the titles, in turn."""
    excluded = {passage.id for passage in passages}
    texts = {document.id: document.contents for hits in (of_question, *of_titles) for document in hits}
    excluded |= {
        name for name, text in texts.items() if any(is_copy(passage.contents, text) for passage in passages)
    }
    by_question = {document.id: document for document in of_question if document.id not in excluded}
    neighbours = dict(list(by_question.items())[:limit])
    by_title = {
        document.id: document
        for rank in zip_longest(*of_titles)
        for document in rank
        if document is not None and document.id not in excluded and document.id not in neighbours
    }
    return [*neighbours.values(), *list(by_title.values())[: limit // 2]]
