"""Word search with BM25, by the library bm25s.

The scores of all words are computed when the index is built, and a search adds them up. Passages and queries
are analysed in the same way: lower case, runs of letters, digits and underscores, English stop words removed,
and stemmed (Snowball English), where the manifest says whether the last two apply. A passage that shares no
word with the query is not a hit, so a query without a known word finds nothing. Equal scores are in corpus
order, so that results do not depend on topk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from retrieval_server.errors import REBUILD, UserError
from retrieval_server.extras import missing_message
from retrieval_server.folder.manifest import BM25Section, require_equal
from retrieval_server.search.backends import Backend, Hit
from retrieval_server.search.bm25s_import import bm25s

_WORD = re.compile(r"\w+")
#: The 33 words of Lucene's English analyser.
_STOPWORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these "
    "they this to was will with".split()
)
#: The message for a corpus without words.
NO_WORD = "The corpus has no word to index, only stop words and punctuation. Look at its contents."


class Analyzer:
    """Splits texts into index terms, with the settings of the manifest."""

    def __init__(self, section: BM25Section):
        self._stopwords = _STOPWORDS if section.stopwords == "english" else frozenset()
        self._stem = None
        if section.stemmer == "english":
            try:
                import Stemmer
            except ImportError:
                raise UserError(missing_message("Stemming", "bm25", ["PyStemmer"])) from None
            self._stem = Stemmer.Stemmer("english").stemWord

    def terms(self, text: str) -> list[str]:
        """Return the index terms of a text, in the order of its words."""
        words = [word for word in _WORD.findall(text.lower()) if word not in self._stopwords]
        return words if self._stem is None else [self._stem(word) for word in words]


def build_bm25(texts: Iterable[str], section: BM25Section, folder: Path, *, progress: bool = True) -> None:
    """Write a BM25 index of `texts`, in row order, into `folder`.

    For each text this takes about 100 bytes of memory, 4 for each word, and 36 for each different word, for
    which bm25s makes three arrays of 4 bytes and sorts them.

    Raises UserError if the texts have no word to index.
    """
    analyzer = Analyzer(section)
    vocabulary: dict[str, int] = {}
    rows = [
        np.array(
            [vocabulary.setdefault(term, len(vocabulary)) for term in analyzer.terms(text)], dtype=np.int32
        )
        for text in texts
    ]
    if not vocabulary:
        raise UserError(NO_WORD)
    index = bm25s.BM25(k1=section.k1, b=section.b, method="lucene", backend="numpy")
    # build_index_from_ids is the layer below BM25.index() and accepts the ids of our own analyser.
    index.scores = index.build_index_from_ids(
        unique_token_ids=list(vocabulary.values()), corpus_token_ids=rows, show_progress=progress
    )
    index.vocab_dict = vocabulary
    index.save(folder, show_progress=False)


class BM25Backend(Backend):
    """A BM25 index that is opened from its folder with memory-mapped arrays."""

    def __init__(self, folder: Path, section: BM25Section, count: int):
        try:
            self._index = bm25s.BM25.load(folder, mmap=True, show_progress=False)
            require_equal(f"{folder}: passages", count, int(self._index.scores["num_docs"]), REBUILD)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{folder}: not a readable BM25 index ({error}). {REBUILD}") from error
        self._analyzer = Analyzer(section)

    def prepare(self, queries: Sequence[str]) -> list[list[int]]:
        """Return for each query the ids of its words that are in the index."""
        return [self._index.get_tokens_ids(self._analyzer.terms(query)) for query in queries]

    def find(self, prepared: list[list[int]], topk: int) -> list[list[Hit]]:
        return [top_hits(self._index.get_scores_from_ids(ids), topk) if ids else [] for ids in prepared]


def top_hits(scores: np.ndarray, topk: int) -> list[Hit]:
    """Return the `topk` largest positive scores of a (rows,) array, best first, equal scores in row order."""
    rows = np.flatnonzero(scores > 0)
    if len(rows) > topk:
        # Keep all rows from the k-th score on, including ties; the stable sort cuts them in row order.
        threshold = np.partition(scores[rows], -topk)[-topk]
        rows = rows[scores[rows] >= threshold]
    order = np.argsort(-scores[rows], kind="stable")[:topk]
    return [Hit(int(row), float(scores[row])) for row in rows[order]]
