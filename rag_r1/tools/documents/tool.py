"""The tool `documents`: searches a folder of the user's own documents.

    rag_r1:
      tools:
        documents: {tool: documents, folder: my/notes, topk: 3}

The first call cuts the documents into passages (corpus.py), which are then searched with BM25 in this
process. No server is needed, and no text leaves the process. Each process of a training holds its own copy of
the index, which is fine for some hundred thousand passages. For a larger folder, or to search by meaning, use
the retrieval server: write the passages with `rag-r1 documents`, build an index of them, and use the tool
`retrieval`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from rag_r1.options.declare import options
from rag_r1.options.from_config import options_from
from rag_r1.options.types import Constraint, Flag, PositiveCount, Text
from rag_r1.protocols import Document
from rag_r1.system.installation import pip_command
from rag_r1.tools.documents.corpus import index_folder
from rag_r1.tools.lazy import LazyValue

#: Name of the folder with the passages inside the folder of documents, unless `index` names another. It is
#: hidden, so that its files are not read as documents.
INDEX = ".rag_r1_index"
#: A word, or one character of Chinese or Japanese, which do not separate words.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
#: Words that occur in every text and are therefore not searched for.
_STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these "
    "they this to was will with".split()
)


@options("rag_r1.tools.NAME")
class DocumentsOptions:
    """The keys of the tool `documents`."""

    #: The folder with the documents (.txt, .md, .html, .pdf), which may be in subfolders.
    folder: Annotated[Text, Constraint("a folder with documents")]
    #: The folder in which the passages are kept; null: in the folder of documents.
    index: Annotated[Text | None, Constraint("a folder or null")] = None
    #: Number of passages for each query.
    topk: PositiveCount = 3
    #: Whether to leave out files that cannot be read; otherwise every search fails, and the log names them.
    skip_bad_files: Flag = False


def make_documents(options: Mapping[str, Any], key: str) -> DocumentSearch:
    """Return the searcher of a folder. Raises OptionsError for a wrong option, and ValueError if the folder
    or a package is missing."""
    parsed = options_from(DocumentsOptions, options, key)
    if not Path(parsed.folder).is_dir():
        raise ValueError(f"{key}.folder: there is no folder {parsed.folder!r}")
    if find_spec("bm25s") is None:
        raise ValueError(f"{key} needs the package bm25s: {pip_command('documents')}")
    return DocumentSearch(parsed)


class DocumentSearch:
    """Searches the passages of a folder, which the first search makes."""

    def __init__(self, options: DocumentsOptions):
        self.options = options
        self._index = LazyValue(self._load)

    async def search(self, queries: Sequence[str]) -> list[list[Document]]:
        """Return the best passages for each query. Raises RunError or OSError if the folder cannot be
        read."""
        index = await self._index.get()
        return await asyncio.to_thread(lambda: [index.search(query, self.options.topk) for query in queries])

    def _load(self) -> PassageIndex:
        """Make the passages, unless they are there and the folder is unchanged, and index them."""
        folder = Path(self.options.folder)
        out = folder / INDEX if self.options.index is None else Path(self.options.index)
        corpus = index_folder(folder, out, skip_bad_files=self.options.skip_bad_files)
        with corpus.open(encoding="utf-8") as lines:
            return PassageIndex([json.loads(line) for line in lines])


class PassageIndex:
    """A BM25 index in memory, which several threads may search. `rows` are passages as corpus.py writes
    them."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]):
        import bm25s

        self._documents = [Document(row["id"], f'"{row["title"]}"\n{row["text"]}') for row in rows]
        self._bm25 = bm25s.BM25(method="lucene", backend="numpy")
        self._words: dict[str, int] = {}  # word -> its id
        ids = [
            [self._words.setdefault(word, len(self._words)) for word in words_of(document.contents)]
            for document in self._documents
        ]
        if self._words:  # bm25s refuses an index without words
            self._bm25.index((ids, self._words), show_progress=False)

    def search(self, query: str, topk: int) -> list[Document]:
        """Return at most `topk` passages that share a word with the query, best first."""
        ids = [self._words[word] for word in words_of(query) if word in self._words]
        if not ids:
            return []
        scores = self._bm25.get_scores_from_ids(ids)
        best = [row for row in np.argsort(-scores, kind="stable")[:topk] if scores[row] > 0]
        return [replace(self._documents[row], score=float(scores[row])) for row in best]


def words_of(text: str) -> list[str]:
    """Return the words of a text by which it is found."""
    return [word for word in _WORD.findall(text.casefold()) if word not in _STOP_WORDS]
