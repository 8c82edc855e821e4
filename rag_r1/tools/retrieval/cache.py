"""A cache of search results that all belong to one version of the server's index.

When a server has reloaded its index, its next answer names the new version (`X-Index-Version`), and the
results of the old index are dropped. Requests in flight at that moment may be answered by either index, so an
answer is kept only if no other version has been seen since its request was sent.

If a server names no version, as other projects' do not, the client assumes that its index never changes.
Versions count the reloads of one process. A server that is restarted with another index may therefore have
the same version as before: restart its clients as well, or reload the index instead.
"""

from __future__ import annotations

from cachetools import LRUCache

from rag_r1.protocols import Document


class QueryCache:
    """The documents of the `size` most recently used queries, all of one version of the index."""

    def __init__(self, size: int):
        self._documents: LRUCache[str, list[Document]] = LRUCache(size)
        self._version: str | None = None
        #: Number of reloads that were seen so far. A caller notes it when it sends a request.
        self.reloads = 0

    def get(self, query: str) -> list[Document] | None:
        """Return the documents of a query; None if they are not in the cache."""
        return self._documents.get(query)

    def keep(self, query: str, documents: list[Document], reloads_when_sent: int) -> None:
        """Keep the result of a query, unless the index was reloaded since the request was sent."""
        if self._documents.maxsize and reloads_when_sent == self.reloads:
            self._documents[query] = documents

    def note_version(self, version: str | None, reloads_when_sent: int) -> None:
        """Note the version of the index in an answer. Another version than before empties the cache."""
        if version is None or reloads_when_sent != self.reloads:
            return
        if self._version not in (None, version):
            self._documents.clear()
            self.reloads += 1
        self._version = version
