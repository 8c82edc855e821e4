"""Reads the triples of an RDF file in a sandbox worker, with rdflib.

XML that declares a document type is refused: its entities can unpack a few hundred bytes to gigabytes, or
name other files. Whether it does is seen by the parser that rdflib itself uses, whatever the encoding.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from xml.parsers import expat

#: Longest address or text of a triple, in characters.
MAX_TERM_CHARS = 1 << 20
#: Bytes that are read of XML at a time until its first element.
_XML_BYTES = 1 << 16


def read(path: str, form: str) -> list[list[Any]]:
    """A job: the terms and triples of a file, as `_terms_and_triples` returns them. `path`: the bytes of the
    path as Latin-1; `form`: rdflib's name of the format. Raises ValueError, and OSError if it cannot be
    opened."""
    from rdflib import Graph

    file_name = os.fsdecode(path.encode("latin-1"))
    if form == "xml":
        _reject_doctype(file_name)
    graph = Graph()
    try:
        with open(file_name, "rb") as stream:
            graph.parse(file=stream, format=form, publicID=Path(file_name).as_uri())
    except (OSError, MemoryError):
        raise
    except Exception as error:  # rdflib's parsers raise many kinds, also RecursionError
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"it is not readable RDF ({type(error).__name__}: {reason}): repair it") from None
    return _terms_and_triples(graph)


def _terms_and_triples(graph: Any) -> list[list[Any]]:
    """Returns the terms of a graph, and its triples as numbers of terms, three in a row. A term is an address
    `[address]`, a nameless node `[name, 0]`, or a text `[text, language, datatype]`. Raises ValueError for a
    term that is too long."""
    from rdflib import Literal, URIRef

    numbers: dict[Any, int] = {}
    terms: list[list[Any]] = []
    triples: list[int] = []
    for triple in graph:
        for term in triple:
            # Not the term itself: equal terms may differ in what they show, and typed texts compare slowly.
            key = (type(term), str(term), getattr(term, "language", None), getattr(term, "datatype", None))
            if (number := numbers.get(key)) is None:
                if len(str(term)) > MAX_TERM_CHARS:
                    raise ValueError(f"it has a text longer than {MAX_TERM_CHARS:,} characters: cut it")
                number = numbers[key] = len(terms)
                if isinstance(term, Literal):
                    terms.append([str(term), term.language or "", str(term.datatype or "")])
                else:
                    terms.append([str(term)] if isinstance(term, URIRef) else [str(term), 0])
            triples.append(number)
    return [terms, triples]


def _reject_doctype(path: str) -> None:
    """Raises ValueError for an XML file that declares a document type, and OSError."""

    def refuse(*_: Any) -> None:
        raise ValueError(
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
    except (expat.ExpatError, LookupError) as error:
        if not elements:  # otherwise rdflib says what is wrong
            raise ValueError(f"it is not readable XML ({error}): repair it") from None
