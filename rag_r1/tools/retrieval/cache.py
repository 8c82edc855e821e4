"""A cache of search results that belongs to one version of the server's index.

A server that reloads its index names the new version in its next answer (`X-Index-Version`). The results of
the old index are then forgotten. Requests that were under way at that moment may bring answers of either; so
the answer to a request is kept only if no other version has been seen since it was sent. A server of another
make, which names no version, is taken to have one index for ever. Versions count reloads, so a server that is
ended and started with another index may have the same number again: restart its clients too, or reload.
"""

from __future__ import annotations

from cachetools import LRUCache

from rag_r1.protocols import Document


class QueryCache:
    """The documents of the `size` most recent queries, all of one version of the index."""

    def __init__(self, size: int):
        self._documents: LRUCache[str, list[Document]] = LRUCache(size)
        self._version: str | None = None
        #: How often another version was seen; a request remembers the number at which it was sent.
        self.changes = 0

    def get(self, query: str) -> list[Document] | None:
        """The documents of a query, or None if they are not in the cache."""
        return self._documents.get(query)

    def keep(self, query: str, documents: list[Document], sent_at: int) -> None:
        """Keep the result of a request that was sent at this number of changes."""
        if self._documents.maxsize and sent_at == self.changes:
            self._documents[query] = documents

    def note_version(self, version: str | None, sent_at: int) -> None:
        """Note the version in the answer to a request that was sent at this number of changes."""
        if version is None or sent_at != self.changes:
            return
        if self._version not in (None, version):
            self._documents.clear()
            self.changes += 1
        self._version = version
