"""In-process BM25 over a world's passages, with the same ranking as the retrieval server.

The warm start needs a new index for every batch, for which a server would be too slow, and `rag_r1` may not
import the code of the server. The same steps are therefore implemented again: lower case, words, Lucene's
stop words, English stems, BM25 with k1 = 1.2 and b = 0.75, only passages with a positive score, and ties in
the order of the corpus. A test compares the two implementations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from rag_r1.protocols import Document

_STOPWORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these "
    "they this to was will with".split()
)


class WorldSearch:
    """Searches passages `{"id", "contents"}`.

    Synchronous code calls `results`; the agent calls `search` as its tool.
    """

    def __init__(self, passages: Sequence[dict[str, str]], topk: int = 2):
        import bm25s  # here: it belongs to an extra, and this module is imported for `rag-r1 demo --help`

        self.topk = topk
        self._documents = [Document(passage["id"], passage["contents"]) for passage in passages]
        vocabulary: dict[str, int] = {}
        rows = []
        for passage in passages:
            ids = [vocabulary.setdefault(term, len(vocabulary)) for term in _terms(passage["contents"])]
            rows.append(np.array(ids, np.int32))
        self._index = bm25s.BM25(k1=1.2, b=0.75, method="lucene", backend="numpy")
        self._index.scores = self._index.build_index_from_ids(
            list(vocabulary.values()), rows, show_progress=False
        )
        self._index.vocab_dict = vocabulary

    def results(self, queries: Sequence[str]) -> list[list[Document]]:
        """Return the best `topk` passages for each query, best first."""
        return [self._best(query) for query in queries]

    async def search(self, queries: Sequence[str]) -> list[list[Document]]:
        """Return the same as `results`."""
        return self.results(queries)

    def _best(self, query: str) -> list[Document]:
        """Return the best passages for a query; only those with a positive score."""
        ids = self._index.get_tokens_ids(_terms(query))
        if not ids:
            return []
        scores = self._index.get_scores_from_ids(ids)
        best = np.argsort(-scores, kind="stable")[: self.topk]
        return [self._documents[row] for row in best if scores[row] > 0]


def _terms(text: str) -> list[str]:
    """Return the stems of the words of a text, without stop words."""
    stem = _stemmer()
    return [stem(word) for word in re.findall(r"\w+", text.lower()) if word not in _STOPWORDS]


@cache
def _stemmer() -> Callable[[str], str]:
    import Stemmer

    return Stemmer.Stemmer("english").stemWord
