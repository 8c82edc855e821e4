"""Searches the corpus of a run, and records each result in the run's journal.

A resumed run reads the recorded results instead of searching again. It therefore shows the reader the same
passages, so that the reader's cached replies can be used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rag_r1.protocols import Document, Failure
from rag_r1.questions.passages.documents import PassagePool, SourcePassage, is_copy
from rag_r1.questions.spec import QuestionsSpec
from rag_r1.rollouts.search_check import try_first_search
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.errors import RunError
from rag_r1.runs.json_lines import JsonLinesFile, LinePosition
from rag_r1.tools.retrieval.client import RetrievalClient, RetrieverConfig

#: The query for passages that are similar to a given one consists of its first characters.
QUERY_CHARS = 300
#: Number of passages that are searched for to see whether the server has this corpus.
_PROBE_PASSAGES = 5
#: Number of passages that a search returns beyond the wanted neighbours, since it also finds the draft's own.
_EXTRA_PASSAGES = 6


class SearchFailedError(Exception):
    """Raised if the retrieval server does not answer a query; the query is repeated in a resumed run."""


class JournaledSearch:
    """Finds the best `config.topk` passages for each query, from the journal `path` if they are in it.

    After a `stop` of the run the server gets no more requests: a search that needs one waits until it is
    cancelled. Raises RunError if the journal has a line of another form, and OSError if it cannot be opened.
    """

    def __init__(self, config: RetrieverConfig, path: Path, stop: CancelToken):
        self._stop = stop
        self._positions: dict[str, LinePosition] = {}
        self._journal = JsonLinesFile(path, self._note_line)
        self._client = RetrievalClient(config)

    async def __call__(self, queries: Sequence[str]) -> list[list[Document]]:
        """Return the passages for each query, best first.

        Raises SearchFailedError if the server does not answer a query, after the results of the others are
        recorded, and RunError if the disk is full.
        """
        missing = [query for query in dict.fromkeys(queries) if query not in self._positions]
        if missing:
            await self._stop.block_if_cancelled()
        results = await self._client.search(missing) if missing else []
        for query, result in zip(missing, results, strict=True):
            # Another question may have searched it during the await.
            if query not in self._positions and not isinstance(result, Failure):
                self._journal.append({"query": query, "documents": [[d.id, d.contents] for d in result]})
        if failure := next((result for result in results if isinstance(result, Failure)), None):
            raise SearchFailedError(failure.detail)
        return [
            [Document(*pair) for pair in self._journal.at(self._positions[query])["documents"]]
            for query in queries
        ]

    async def close(self) -> None:
        """Close the connections and the journal."""
        await self._client.close()
        self._journal.close()

    def _note_line(self, line: Mapping[str, Any], position: LinePosition) -> None:
        """Note where the journal has the result of a query. Raises TypeError or KeyError for another line."""
        if not isinstance(line["documents"], list):
            raise TypeError("`documents` is not a list")
        self._positions[line["query"]] = position


def retriever_of(spec: QuestionsSpec) -> RetrieverConfig:
    """Return the options of the client with which the run searches."""
    rules = spec.verification
    topk = max(rules.topk, rules.neighbours + _EXTRA_PASSAGES)
    return RetrieverConfig(url=spec.retriever_url, wire=spec.wire, topk=topk, cache_size=0)


async def check_corpus(search: JournaledSearch, pool: PassagePool, url: str) -> None:
    """Search for the first passages of the pool. Raises RunError if no result is a passage of it, or if the
    search fails. `url` is the address of the server, for the message."""
    probes = pool.passages[:_PROBE_PASSAGES]
    try:
        results = await search([passage.contents[:QUERY_CHARS] for passage in probes])
    except SearchFailedError as error:
        raise RunError(
            f"the retrieval server does not answer ({error}): run the same command again"
        ) from error
    if not any(document.id in pool.by_id for documents in results for document in documents):
        raise RunError(
            f"--retriever-url {url} finds no passage of --corpus: build the index of this corpus (`rag-r1 "
            "index build`) and serve it"
        )


async def try_search(config: RetrieverConfig, pool: PassagePool | None) -> None:
    """Search once as a check and, if `pool` is given, also for passages of it. Raises RunError if a search
    fails, or if the server has another corpus."""
    await try_first_search({"url": config.url, "wire": config.wire, "topk": config.topk}, config.url)
    if pool is not None:
        with TemporaryDirectory() as folder:
            search = JournaledSearch(config, Path(folder) / "searches.ndjson", CancelToken())
            try:
                await check_corpus(search, pool, config.url)
            finally:
                await search.close()


def neighbours_of(
    passages: Sequence[SourcePassage],
    question_hits: Sequence[Document],
    title_hits: Sequence[Sequence[Document]],
    limit: int,
) -> list[Document]:
    """Return the passages that searches find beside a draft's own `passages` and copies of these, each once.

    The first come from the search for the question, at most `limit`, and at most half as many more from the
    searches for the titles, which contribute in turn.
    """
    excluded = {passage.id for passage in passages}
    texts = {document.id: document.contents for hits in (question_hits, *title_hits) for document in hits}
    excluded |= {
        id_ for id_, text in texts.items() if any(is_copy(passage.contents, text) for passage in passages)
    }
    by_question = {document.id: document for document in question_hits if document.id not in excluded}
    neighbours = dict(list(by_question.items())[:limit])
    by_title = {
        document.id: document
        for documents_of_rank in zip_longest(*title_hits)
        for document in documents_of_rank
        if document is not None and document.id not in excluded and document.id not in neighbours
    }
    return [*neighbours.values(), *list(by_title.values())[: limit // 2]]
