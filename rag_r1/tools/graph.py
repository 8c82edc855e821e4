"""The tool `graph`: what a knowledge graph says about a thing, from an RDF file.

    rag_r1:
      tools:
        graph: {tool: graph, file: my/graph.ttl}

A query is the name of a thing, or some words of it. The answer is a document for each thing whose name has
these words, the whole name first, with a fact a line: `mother: Lady Byron`, and `mother of: ...` where the
thing is the object. Names are the labels in the graph (rdfs:label, skos:prefLabel, foaf:name, schema:name),
or else the last part of the address. The file is read with rdflib by the first call.

There is no SPARQL here: rdflib would let a query fetch any address or run for ever. A store that bounds its
queries itself is asked with the tool `sparql`. For the same reason JSON-LD, which can load what it names from
the web, is not read.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

from rag_r1.options import Must, PositiveCount, Text, options, options_from
from rag_r1.protocols import Document
from rag_r1.tools.loading import LoadedOnce

#: Ending of a file's name -> rdflib's name of the format.
FORMATS = {".ttl": "turtle", ".nt": "nt", ".rdf": "xml", ".owl": "xml", ".xml": "xml"}
_LABELS = (
    "http://www.w3.org/2000/01/rdf-schema#label",
    "http://www.w3.org/2004/02/skos/core#prefLabel",
    "http://xmlns.com/foaf/0.1/name",
    "http://schema.org/name",
    "https://schema.org/name",
)
#: Longest name or value that is shown, in characters.
_SHOWN = 300
_WORD = re.compile(r"\w+")


@options("rag_r1.tools.NAME")
class GraphOptions:
    """The keys of the tool `graph`."""

    #: The RDF file.
    file: Annotated[Text, Must(f"a file that ends in one of {', '.join(FORMATS)}")]
    #: Things that are shown for a query.
    topk: PositiveCount = 3
    #: Facts that are shown of each.
    facts: PositiveCount = 30
    #: Which names and texts are shown where there are several; those without a language are, too.
    language: Text = "en"


def make_graph(options: Mapping[str, Any], key: str) -> GraphSearch:
    """The searcher. Raises OptionsError for a wrong option, and ValueError if the file or rdflib is
    missing."""
    given = options_from(GraphOptions, options, key)
    path = Path(given.file)
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{key}.file must end in one of {', '.join(FORMATS)}, not {given.file!r}")
    if not path.is_file():
        raise ValueError(f"{key}.file: there is no file {given.file!r}")
    try:
        import rdflib  # noqa: F401
    except ImportError:
        raise ValueError(f"{key} needs the package rdflib: pip install 'rag-r1[graph]'") from None
    return GraphSearch(given)


class GraphSearch:
    """Looks things up in one graph."""

    def __init__(self, options: GraphOptions):
        self.options = options
        self._facts = LoadedOnce(lambda: Facts.read(Path(options.file), options.language))

    async def search(self, queries: Sequence[str]) -> list[list[Document]]:
        """For each query the things that it names. Raises what rdflib raises for a broken file."""
        facts, given = await self._facts.get(), self.options
        return await asyncio.to_thread(
            lambda: [facts.search(query, given.topk, given.facts) for query in queries]
        )


class Facts:
    """A graph with the names of its things. May be used by several threads."""

    def __init__(self, graph: Any, language: str):
        self._graph, self._language = graph, language
        self._names: dict[Any, list[str]] = defaultdict(list)
        self._with_word: dict[str, set[Any]] = defaultdict(set)
        self._read_names()

    @classmethod
    def read(cls, path: Path, language: str = "en") -> Facts:
        """From an RDF file. Raises OSError, and what rdflib's parsers raise."""
        from rdflib import Graph

        graph = Graph()
        graph.parse(str(path), format=FORMATS[path.suffix.lower()])
        return cls(graph, language)

    def search(self, query: str, topk: int, most_facts: int) -> list[Document]:
        """The things whose name has all words of the query, those with the fewest other words first."""
        wanted = set(_words(query))
        if not wanted:
            return []
        found = set.intersection(*(self._with_word.get(word, set()) for word in wanted))
        ranked = sorted(found, key=lambda thing: (self._distance(thing, wanted), str(thing)))
        return [self._document(thing, most_facts) for thing in ranked[:topk]]

    def _read_names(self) -> None:
        from rdflib import Literal, URIRef

        for label in _LABELS:
            for thing, name in self._graph.subject_objects(URIRef(label)):
                if isinstance(name, Literal) and self._is_ours(name):
                    self._names[thing].append(_line(str(name)))
        for thing in {*self._graph.subjects(), *self._graph.objects()}:
            if isinstance(thing, URIRef) and thing not in self._names:
                self._names[thing].append(_last_part(thing))
        for thing, names in self._names.items():
            for word in {word for name in names for word in _words(name)}:
                self._with_word[word].add(thing)

    def _is_ours(self, text: Any) -> bool:
        return not text.language or text.language.partition("-")[0] == self._language

    def _distance(self, thing: Any, wanted: set[str]) -> int:
        """Other words in the name of a thing, of that which has the fewest."""
        sizes = [len(words) for name in self._names[thing] if wanted <= (words := set(_words(name)))]
        return min(sizes, default=1 << 16)

    def _document(self, thing: Any, most: int) -> Document:
        lines = []
        for line in self._lines(thing):
            if len(lines) == most:
                break
            if line not in lines:
                lines.append(line)
        return Document(str(thing)[:2000], "\n".join([f'"{self._name(thing)}"', *lines]))

    def _lines(self, thing: Any) -> Iterator[str]:
        """A thing's facts; those in which it is the subject come first."""
        from rdflib import Literal

        for predicate, value in sorted(self._graph.predicate_objects(thing)):
            foreign = isinstance(value, Literal) and not self._is_ours(value)
            if str(predicate) not in _LABELS and not foreign:
                yield f"{self._name(predicate)}: {self._name(value)}"
        for subject, predicate in sorted(self._graph.subject_predicates(thing)):
            yield f"{self._name(predicate)} of: {self._name(subject)}"

    def _name(self, node: Any) -> str:
        names = self._names.get(node)
        return names[0] if names else _line(_last_part(node) if "://" in str(node) else str(node))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold().replace("_", " "))


def _last_part(address: Any) -> str:
    """`Ada Lovelace` of `http://example.org/Ada_Lovelace`."""
    return _line(unquote(re.split(r"[/#]", str(address).rstrip("/#"))[-1]).replace("_", " "))


def _line(text: str) -> str:
    return " ".join(text.split())[:_SHOWN]
