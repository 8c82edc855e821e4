"""The tool `graph`: looks things up in a knowledge graph, read from an RDF file.

    rag_r1:
      tools:
        graph: {tool: graph, file: my/graph.ttl}

A query is the name of a thing, or some words of it. The answer has documents for the first `topk` things
whose names contain these words; exact names come first, and things that have the words only in several names
together come last. Each line of a document is a fact: `mother: Lady Byron`, or `mother of: ...` if the thing
is the object. The names are the labels in the graph (rdfs:label, skos:prefLabel, foaf:name, schema:name) or,
without a label, the last part of the address. Blank nodes without a label have no name, and facts about them
are not shown. The first call reads the file with rdflib, in a worker with limits (rag_r1/sandbox/rdf.py). XML
that declares a document type is refused.

There is no SPARQL here, because rdflib would let a query fetch any address and run forever. For an endpoint
that limits its queries itself, use the tool `sparql`. JSON-LD is not read either, since it can load files
from the web.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.declare import options
from rag_r1.options.from_config import options_from
from rag_r1.options.types import Constraint, PositiveCount, Text
from rag_r1.protocols import Document
from rag_r1.sandbox.job_paths import path_argument
from rag_r1.sandbox.worker_pool import JobError, JobLimits, LimitError, WorkerPool
from rag_r1.system.installation import pip_command
from rag_r1.tools.lazy import LazyValue
from rag_r1.tools.retrieval.wire import MAX_ID_CHARS

#: The formats in rdflib's words, by the extension of the file.
FORMATS = {".ttl": "turtle", ".nt": "nt", ".rdf": "xml", ".owl": "xml", ".xml": "xml"}
_LABELS = (
    "http://www.w3.org/2000/01/rdf-schema#label",
    "http://www.w3.org/2004/02/skos/core#prefLabel",
    "http://xmlns.com/foaf/0.1/name",
    "http://schema.org/name",
    "https://schema.org/name",
)
#: Largest file that is read, in bytes.
MAX_FILE_BYTES = 256 << 20
#: Seconds of CPU time for reading a file: a base, and some for each MiB.
CPU_S, CPU_S_PER_MIB = 15.0, 15.0
#: Bytes of memory for reading a file, and bytes of the worker's answer, for each byte of the file.
_MEMORY_PER_BYTE, _ANSWER_PER_BYTE = 100, 32
_NUMBERS = {"http://www.w3.org/2001/XMLSchema#" + kind for kind in ("integer", "decimal", "double", "float")}
_NUMBER = re.compile(r"[-+]?[0-9]{1,15}(\.[0-9]{1,15})?([eE][-+]?[0-9]{1,2})?")
#: Longest name or value that is shown, in characters.
_MAX_CHARS = 300
_WORD = re.compile(r"\w+")
#: Sorts a thing after all that have a name with all words of the query: more words than any name has.
_NO_NAME = 1 << 16


@options("rag_r1.tools.NAME")
class GraphOptions:
    """The keys of the tool `graph`."""

    #: The RDF file.
    file: Annotated[Text, Constraint(f"a file that ends in one of {', '.join(FORMATS)}")]
    #: Most things that are shown for a query.
    topk: PositiveCount = 3
    #: Most facts that are shown of each thing.
    facts: PositiveCount = 30
    #: Names and texts in this language, of any region, are shown, and those without a language.
    language: Text = "en"


def make_graph(options: Mapping[str, Any], key: str) -> GraphSearch:
    """Return the searcher of a graph. Raises OptionsError for a wrong option, and ValueError if the file is
    missing or of another format, or if rdflib is missing."""
    parsed = options_from(GraphOptions, options, key)
    path = Path(parsed.file)
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{key}.file must end in one of {', '.join(FORMATS)}, not {parsed.file!r}")
    if not path.is_file():
        raise ValueError(f"{key}.file: there is no file {parsed.file!r}")
    if find_spec("rdflib") is None:
        raise ValueError(f"{key} needs the package rdflib: {pip_command('graph')}")
    return GraphSearch(parsed)


class GraphSearch:
    """Looks things up in one graph, which the first search reads."""

    def __init__(self, options: GraphOptions):
        self.options = options
        self._graph = LazyValue(lambda: FactGraph.read(Path(options.file), options.language))

    async def search(self, queries: Sequence[str]) -> list[list[Document]]:
        """Return the documents of the things that each query names. Raises ValueError or OSError if the file
        cannot be read."""
        graph = await self._graph.get()
        topk, max_facts = self.options.topk, self.options.facts
        return await asyncio.to_thread(lambda: [graph.search(query, topk, max_facts) for query in queries])


class FactGraph:
    """A graph and the names of its things, which several threads may search.

    `terms` and `triples` are what rag_r1/sandbox/rdf.py returns. A thing is represented by the index of its
    term.
    """

    def __init__(self, terms: Sequence[Sequence[Any]], triples: Sequence[int], language: str):
        self._terms, self._language = terms, language.partition("-")[0].lower()  # tags ignore case
        #: (predicate, object) of the facts of each thing, and (subject, predicate) of those that mention it.
        self._facts_of: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._mentions: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for start in range(0, len(triples), 3):
            subject, predicate, value = triples[start : start + 3]
            self._facts_of[subject].append((predicate, value))
            self._mentions[value].append((subject, predicate))
        self._names: dict[int, list[str]] = defaultdict(list)
        self._things_by_word: dict[str, set[int]] = defaultdict(set)
        self._read_names()

    @classmethod
    def read(cls, path: Path, language: str = "en") -> FactGraph:
        """Read an RDF file. Raises OSError, and ValueError if the file is no valid RDF or too large."""
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ValueError(f"{path}: it has more than {MAX_FILE_BYTES >> 20} MiB: split it")
        limits = JobLimits(
            cpu_s=CPU_S + CPU_S_PER_MIB * size / (1 << 20),
            memory_bytes=(1 << 30) + _MEMORY_PER_BYTE * size,
            answer_bytes=(128 << 20) + _ANSWER_PER_BYTE * size,
        )
        job = [path_argument(path), FORMATS[path.suffix.lower()]]
        workers = WorkerPool(1)
        try:
            terms, triples = workers.call("rag_r1.sandbox.rdf:read", job, limits)
        except LimitError as error:
            raise ValueError(terminal_text(f"{path}: {error}: repair it or split it", 600)) from None
        except JobError as error:
            error_type = OSError if error.kind == "OSError" else ValueError
            raise error_type(terminal_text(f"{path}: {error}", 600)) from None
        finally:
            workers.close()
        return cls(terms, triples, language)

    def search(self, query: str, topk: int, max_facts: int) -> list[Document]:
        """Return documents for the first `topk` things whose names have all words of the query. Names with
        the fewest other words come first, and things of which no single name has all of them come last."""
        query_words = set(_words(query))
        if not query_words:
            return []
        things = set.intersection(*(self._things_by_word.get(word, set()) for word in query_words))
        ranked = sorted(things, key=lambda thing: (self._distance(thing, query_words), self._text(thing)))
        return [self._document(thing, max_facts) for thing in ranked[:topk]]

    def _read_names(self) -> None:
        """Collect the names of all things, from labels or else from addresses, and the things by word."""
        labels = {self._text(term): term for term in range(len(self._terms)) if self._is_label(term)}
        for label in (labels[address] for address in _LABELS if address in labels):
            for thing, facts in self._facts_of.items():
                for predicate, name in facts:
                    if predicate == label and self._is_text(name) and self._is_in_language(name):
                        self._names[thing].append(_line(self._text(name)))
        for thing in (*self._facts_of, *self._mentions):
            if self._is_address(thing) and thing not in self._names:
                self._names[thing].append(_last_part(self._text(thing)))
        for thing, names in self._names.items():
            for word in {word for name in names for word in _words(name)}:
                self._things_by_word[word].add(thing)

    def _text(self, term: int) -> str:
        return self._terms[term][0]

    def _is_address(self, term: int) -> bool:
        return len(self._terms[term]) == 1  # sandbox/rdf.py tells terms apart by their length

    def _is_text(self, term: int) -> bool:
        return len(self._terms[term]) == 3

    def _is_label(self, term: int) -> bool:
        return self._is_address(term) and self._text(term) in _LABELS

    def _is_in_language(self, text: int) -> bool:
        language = self._terms[text][1]
        return not language or language.partition("-")[0].lower() == self._language

    def _distance(self, thing: int, query_words: set[str]) -> int:
        """Return the least number of words in a name of the thing that has all words of the query; _NO_NAME
        if none has."""
        sizes = [len(words) for name in self._names[thing] if query_words <= (words := set(_words(name)))]
        return min(sizes, default=_NO_NAME)

    def _document(self, thing: int, max_facts: int) -> Document:
        """Return a document with the name of a thing and its first facts, each of them once."""
        lines: dict[str, None] = {}  # in order, like a set
        for line in self._lines(thing):
            if len(lines) == max_facts:
                break
            lines.setdefault(line)
        return Document(self._text(thing)[:MAX_ID_CHARS], "\n".join([f'"{self._name(thing)}"', *lines]))

    def _lines(self, thing: int) -> Iterator[str]:
        """Yield the facts of a thing as lines; those in which it is the subject come first."""
        for predicate, value in sorted(self._facts_of.get(thing, ()), key=self._sort_keys):
            if not self._is_label(predicate) and self._is_shown(value):
                yield f"{self._name(predicate)}: {self._name(value)}"
        for subject, predicate in sorted(self._mentions.get(thing, ()), key=self._sort_keys):
            if self._is_shown(subject):
                yield f"{self._name(predicate)} of: {self._name(subject)}"

    def _is_shown(self, term: int) -> bool:
        """Return whether facts with this term are shown: not if it is a text in another language, or has no
        name."""
        return self._is_in_language(term) if self._is_text(term) else bool(self._name(term))

    def _sort_keys(self, pair: tuple[int, int]) -> list[tuple[int, float, str, str]]:
        """Return the sort key of a fact: the keys of both terms."""
        return [self._sort_key(term) for term in pair]

    def _sort_key(self, term: int) -> tuple[int, float, str, str]:
        """Return the sort key of a term. Nameless things come first, then addresses, then texts; numbers are
        sorted by value."""
        if not self._is_text(term):
            return int(self._is_address(term)), 0.0, self._text(term), ""
        text, language, datatype = self._terms[term]
        number = float(text) if datatype in _NUMBERS and _NUMBER.fullmatch(text) else 0.0
        return 2, number, text, language

    def _name(self, term: int) -> str:
        """Return the name with which a term is shown."""
        if names := self._names.get(term):
            return names[0]
        text = self._text(term)
        return _last_part(text) if self._is_address(term) and "://" in text else _line(text)


def _words(text: str) -> list[str]:
    """Return the words of a name or a query by which things are found."""
    return _WORD.findall(text.casefold().replace("_", " "))


def _last_part(address: str) -> str:
    """Return the name in an address: `Ada Lovelace` for `http://example.org/Ada_Lovelace`."""
    return _line(unquote(re.split(r"[/#]", address.rstrip("/#"))[-1]).replace("_", " "))


def _line(text: str) -> str:
    """Return a text as one line of at most _MAX_CHARS characters."""
    return " ".join(text.split())[:_MAX_CHARS]
