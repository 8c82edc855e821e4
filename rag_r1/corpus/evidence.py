"""Reads the evidence that a data set names for a question, and its text where there is one.

It stands in the row or in the row's `metadata`:

    supporting_ids       ids of passages in the corpus that the data set was made from
    supporting_titles    titles of pages
    supporting_facts     HotpotQA's and 2WikiMultihopQA's: [title, sentence], or {"title": [...], ...}
    paragraphs           MuSiQue's: those with `is_supporting`, with their text
    context              HotpotQA's and 2WikiMultihopQA's: the text of the pages, [title, sentences]
    s_wiki_title         PopQA's: the page of the subject
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rag_r1.protocols.actions import has_lone_surrogate

_SUPPORTING = ("supporting_ids", "supporting_titles", "supporting_facts")
#: The columns of a table that are read.
COLUMNS = ("metadata", *_SUPPORTING, "paragraphs", "context", "s_wiki_title")


class RowEvidence(NamedTuple):
    """Ids of passages and titles of pages, each once."""

    ids: tuple[str, ...]
    titles: tuple[str, ...]


def evidence_of(row: Mapping[str, Any]) -> RowEvidence:
    """The evidence that a row or its `metadata` names. Raises ValueError for `supporting_*` of another shape.
    `paragraphs` and `s_wiki_title` of another shape are ignored: other data sets use these names as well."""
    ids: list[str] = []
    titles: list[str] = []
    for mapping in _mappings(row):
        ids += _texts(mapping, "supporting_ids")
        titles += _texts(mapping, "supporting_titles")
        titles += _titles_of_facts(_parsed_json(mapping.get("supporting_facts")))
        titles += _titles_of_paragraphs(_parsed_json(mapping.get("paragraphs")))
        if isinstance(subject := mapping.get("s_wiki_title"), str) and subject.strip():
            titles.append(subject)
    for text in (*ids, *titles):
        if has_lone_surrogate(text):
            raise ValueError("the evidence holds half of a character (a lone surrogate), which is not text")
    return RowEvidence(tuple(dict.fromkeys(ids)), tuple(dict.fromkeys(titles)))


def paragraphs_of(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(title, text) of all paragraphs in a row, also of those that are not evidence. Paragraphs of another
    shape are left out."""
    for mapping in _mappings(row):
        context = _parsed_json(mapping.get("context"))
        if isinstance(context, Mapping):  # as the Hub's copies have it: a list for each column
            columns = context.get("title"), context.get("sentences")
            context = list(zip(*columns, strict=False)) if all(isinstance(c, list) for c in columns) else []
        for page in context if isinstance(context, list) else ():
            if isinstance(page, list | tuple) and len(page) == 2:
                yield from _paragraph(*page)
        paragraphs = _parsed_json(mapping.get("paragraphs"))
        for entry in paragraphs if isinstance(paragraphs, list) else ():
            if isinstance(entry, Mapping):
                yield from _paragraph(entry.get("title"), entry.get("paragraph_text", entry.get("text")))


def _paragraph(title: Any, text: Any) -> Iterator[tuple[str, str]]:
    """The paragraph with blanks folded; `text` may be a list of sentences. Nothing for another shape."""
    parts = [text] if isinstance(text, str) else text
    if isinstance(title, str) and isinstance(parts, list) and all(isinstance(part, str) for part in parts):
        if folded := " ".join(" ".join(parts).split()):
            yield title, folded


def _mappings(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The row, and its `metadata`."""
    yield row
    if isinstance(metadata := _parsed_json(row.get("metadata")), Mapping):
        yield metadata


def _parsed_json(value: Any) -> Any:
    """The value, parsed if it is a list or object in JSON: a table such as CSV has no nested columns."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _texts(mapping: Mapping[str, Any], name: str) -> list[str]:
    """The texts in the list `name`; whole numbers become texts. Raises ValueError for another shape."""
    values = _parsed_json(mapping.get(name))
    if values is None:
        return []
    usable = isinstance(values, list | tuple) and all(
        isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip()
        for value in values
    )
    if not usable:
        raise ValueError(f"`{name}` must be a list of texts")
    return [str(value) for value in values]


def _titles_of_facts(facts: Any) -> list[str]:
    """The titles of `supporting_facts`. Raises ValueError for another shape."""
    if isinstance(facts, Mapping):  # as the Hub's copies have it: a list for each column
        facts = facts.get("title") or []
        facts = [[title] for title in facts] if isinstance(facts, list) else facts
    if not facts:
        return []
    usable = isinstance(facts, list) and all(
        isinstance(fact, list | tuple) and fact and isinstance(fact[0], str) and fact[0].strip()
        for fact in facts
    )
    if not usable:
        raise ValueError("`supporting_facts` must be a list of [title, sentence]")
    return [fact[0] for fact in facts]


def _titles_of_paragraphs(paragraphs: Any) -> list[str]:
    """The titles of the paragraphs that support the answer."""
    return [
        paragraph["title"]
        for paragraph in (paragraphs if isinstance(paragraphs, list) else ())
        if isinstance(paragraph, Mapping)
        and paragraph.get("is_supporting") is True
        and isinstance(paragraph.get("title"), str)
        and paragraph["title"].strip()
    ]
