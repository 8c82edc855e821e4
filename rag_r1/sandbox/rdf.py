"""Reads the triples of an RDF file in a sandbox worker, with rdflib.

XML that declares a document type is refused, because its entities can expand a few hundred bytes to
gigabytes, or refer to other files. The declaration is detected with the parser that rdflib itself uses, so
that the encoding makes no difference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.parsers import expat

from rag_r1.io.errors import DataError
from rag_r1.sandbox.job_paths import path_of

#: Most characters of an address or text in a triple.
MAX_TERM_CHARS = 1 << 20
#: Number of bytes read at a time from XML, up to its first element.
_XML_BYTES = 1 << 16


def read(path: str, file_format: str) -> list[list[Any]]:
    """A job: returns the terms and triples of a file, as `_terms_and_triples` does.

    `path` comes from `path_argument`, and `file_format` is rdflib's name of the format. Raises ValueError if
    the file cannot be read as RDF, and OSError if it cannot be opened.
    """
    from rdflib import Graph

    file_name = path_of(path)
    if file_format == "xml":
        _reject_doctype(file_name)
    graph = Graph()
    try:
        with open(file_name, "rb") as stream:
            graph.parse(file=stream, format=file_format, publicID=Path(file_name).as_uri())
    except (OSError, MemoryError):
        raise
    except Exception as error:  # rdflib's parsers raise many kinds, also RecursionError
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"it is not readable RDF ({type(error).__name__}: {reason}): repair it") from None
    return _terms_and_triples(graph)


def _terms_and_triples(graph: Any) -> list[list[Any]]:
    """Return `[terms, triples]`: the terms of a graph, and its triples as a flat list of indices of terms,
    three for each triple.

    A term is an address `[address]`, a blank node `["", 0]`, or a literal `[text, language, datatype]`.
    rdflib's names of blank nodes are random and therefore left out. Raises ValueError for a term that is too
    long.
    """
    from rdflib import Literal, URIRef

    indices: dict[Any, int] = {}
    terms: list[list[Any]] = []
    triples: list[int] = []
    for triple in graph:
        for term in triple:
            # Terms are not used as keys: equal terms can differ in text, and typed literals compare slowly.
            key = (type(term), str(term), getattr(term, "language", None), getattr(term, "datatype", None))
            if (index := indices.get(key)) is None:
                if len(str(term)) > MAX_TERM_CHARS:
                    raise ValueError(f"it has a text longer than {MAX_TERM_CHARS:,} characters: cut it")
                index = indices[key] = len(terms)
                if isinstance(term, Literal):
                    terms.append([str(term), term.language or "", str(term.datatype or "")])
                else:
                    terms.append([str(term)] if isinstance(term, URIRef) else ["", 0])
            triples.append(index)
    return [terms, triples]


def _reject_doctype(path: str) -> None:
    """Raise ValueError if an XML file declares a document type, or is not XML up to its first element. Raises
    OSError if it cannot be opened."""

    def refuse(*_: Any) -> None:
        raise DataError(
            "it declares a document type (<!DOCTYPE ...>), whose entities are not read: save it as Turtle"
        )

    elements: list[str] = []
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = lambda name, _: elements.append(name)
    try:
        with open(path, "rb") as stream:
            # No document type can follow the first element.
            while not elements and (data := stream.read(_XML_BYTES)):
                parser.Parse(data)
            if not elements:
                parser.Parse(b"", True)
    except DataError:
        raise
    except (expat.ExpatError, LookupError, ValueError) as error:  # the last two for the declared encoding
        if not elements:  # otherwise rdflib reports what is wrong
            raise ValueError(f"it is not readable XML ({error}): repair it") from None
