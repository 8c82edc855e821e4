"""The tool `elasticsearch`: searches an index of Elasticsearch or OpenSearch by title and text.

    rag_r1:
      tools:
        wiki: {tool: elasticsearch, url: "http://127.0.0.1:9200", index: wiki, topk: 5}

Index and search are the same as in ArtSearch, which Agentic RAG-R1 uses: the documents have `title`, `text`
and `url`, a query is a `multi_match` on title and text, and `WikiSearcher(index, url).search(query, size)`
returns results of the form {id, url, title, text}. If the server requires a key, it is read from the
environment variable that `key_env` names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

from rag_r1.io.secrets import read_secret
from rag_r1.options.declare import options
from rag_r1.options.from_config import options_from
from rag_r1.options.server_address import Address
from rag_r1.options.types import Constraint, PositiveCount, PositiveSeconds, Text
from rag_r1.protocols import Document, Failure
from rag_r1.tools.http import HttpFailure, JsonClient
from rag_r1.tools.retrieval.client import failure
from rag_r1.tools.retrieval.wire import MAX_DOCUMENT_CHARS, MAX_ID_CHARS
from rag_r1.tools.secret_option import Variable

_FIELDS = ("title", "text")


@options("rag_r1.tools.NAME")
class ElasticsearchOptions:
    """The keys of the tool `elasticsearch`."""

    #: Name of the index, or of several, separated by commas.
    index: Annotated[Text, Constraint("the name of an index")]
    #: Address of the server.
    url: Address = "http://127.0.0.1:9200"
    #: Number of documents for each query.
    topk: PositiveCount = 5
    #: Seconds within which the server must answer.
    timeout_s: PositiveSeconds = 30.0
    #: Environment variable with an API key in Elasticsearch's form (base64).
    key_env: Variable = None


def make_elasticsearch(options: Mapping[str, Any], key: str) -> ElasticSearch:
    """Return the searcher of an index. Raises OptionsError for a wrong option, and what `read_secret`
    raises."""
    parsed = options_from(ElasticsearchOptions, options, key)
    secret = read_secret(parsed.key_env)
    searcher = WikiSearcher(parsed.index, parsed.url, key=secret, timeout_s=parsed.timeout_s)
    return ElasticSearch(searcher, parsed.topk)


class WikiSearcher:
    """Searches one index. The API key `key` is sent to `url` only. The server must answer within `timeout_s`
    seconds."""

    def __init__(self, index: str, url: str, *, key: str | None = None, timeout_s: float = 30.0):
        self._url = f"{url.rstrip('/')}/{quote(index, safe=',*')}/_search"
        self._server = JsonClient({"Authorization": f"ApiKey {key}"} if key else {}, timeout_s)

    async def search(self, query: str, size: int = 5) -> list[dict[str, str]]:
        """Return at most `size` results {id, url, title, text}, best first. Raises HttpFailure, also if there
        is no such index (HTTP 404)."""
        body = {"query": {"multi_match": {"query": query, "fields": list(_FIELDS)}}, "size": size}
        answer = await self._server.ask("POST", self._url, json=body)
        hits = answer.get("hits") if isinstance(answer, dict) else None
        hits = hits.get("hits") if isinstance(hits, dict) else None
        if not isinstance(hits, list):
            raise HttpFailure("its answer has no hits")
        return [_result(hit) for hit in hits[:size]]

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()


def _result(hit: Any) -> dict[str, str]:
    """Convert a hit of Elasticsearch to {id, url, title, text}. Raises HttpFailure if it has no document."""
    source = hit.get("_source") if isinstance(hit, dict) else None
    if not isinstance(source, dict):
        raise HttpFailure("a hit has no _source")
    texts = {name: source.get(name) for name in ("url", *_FIELDS)}
    fields = {name: value if isinstance(value, str) else "" for name, value in texts.items()}
    return {"id": str(hit.get("_id", ""))[:MAX_ID_CHARS], **fields}


class ElasticSearch:
    """The searcher of the tool, which sends all queries of a turn concurrently, and returns at most `topk`
    documents for each."""

    def __init__(self, searcher: WikiSearcher, topk: int):
        self.searcher, self.topk = searcher, topk

    async def search(self, queries: Sequence[str]) -> list[list[Document] | Failure]:
        """Return the documents for each query, or a Failure if its search failed."""
        return list(await asyncio.gather(*map(self._search, queries)))

    async def close(self) -> None:
        """Close the connections."""
        await self.searcher.close()

    async def _search(self, query: str) -> list[Document] | Failure:
        """Return the documents for one query, or a Failure."""
        try:
            results = await self.searcher.search(query, self.topk)
        except HttpFailure as error:
            return failure(f"{type(error).__name__}: {error}")
        return [
            Document(result["id"], f'"{result["title"]}"\n{result["text"]}'[:MAX_DOCUMENT_CHARS])
            for result in results
        ]
