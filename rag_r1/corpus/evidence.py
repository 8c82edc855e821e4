"""Reads the evidence that a data set names for a question, and the text of its paragraphs if it has any.

These keys of a row, or of the row's `metadata`, are read:

    supporting_ids       ids of passages in the corpus from which the data set was made
    supporting_titles    titles of pages
    supporting_facts     HotpotQA, 2WikiMultihopQA: [title, sentence], or {"title": [...], ...}
    paragraphs           MuSiQue: paragraphs with their text, of which those with `is_supporting` are evidence
    context              HotpotQA, 2WikiMultihopQA: the text of the pages, [title, sentences]
    s_wiki_title         PopQA: the page of the subject
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rag_r1.protocols.actions import has_lone_surrogate

_SUPPORTING = ("supporting_ids", "supporting_titles", "supporting_facts")
#: The columns that are read if the rows are a table.
COLUMNS = ("metadata", *_SUPPORTING, "paragraphs", "context", "s_wiki_title")


class RowEvidence(NamedTuple):
    """The ids of passages and the titles of pages that a row names, each once."""

    ids: tuple[str, ...]
    titles: tuple[str, ...]


def evidence_of(row: Mapping[str, Any]) -> RowEvidence:
    """Return the evidence that a row or its `metadata` names. Raises ValueError for a malformed
    `supporting_*` key. Malformed `paragraphs` and `s_wiki_title` are ignored, since other data sets use these
    names, too."""
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
    """Yield (title, text) of all paragraphs in a row, whether they are evidence or not. Malformed paragraphs
    are left out."""
    for mapping in _mappings(row):
        context = _parsed_json(mapping.get("context"))
        if isinstance(context, Mapping):  # the copies on the Hub have a list for each column
            columns = context.get("title"), context.get("sentences")
            are_lists = all(isinstance(column, list) for column in columns)
            context = list(zip(*columns, strict=False)) if are_lists else []
        for page in context if isinstance(context, list) else ():
            if isinstance(page, list | tuple) and len(page) == 2:
                yield from _paragraph(*page)
        paragraphs = _parsed_json(mapping.get("paragraphs"))
        for entry in paragraphs if isinstance(paragraphs, list) else ():
            if isinstance(entry, Mapping):
                yield from _paragraph(entry.get("title"), entry.get("paragraph_text", entry.get("text")))


def _paragraph(title: Any, text: Any) -> Iterator[tuple[str, str]]:
    """Yield (title, text) with white space folded; `text` may be a list of sentences. Yields nothing for a
    malformed or empty paragraph."""
    parts = [text] if isinstance(text, str) else text
    if isinstance(title, str) and isinstance(parts, list) and all(isinstance(part, str) for part in parts):
        if folded := " ".join(" ".join(parts).split()):
            yield title, folded


def _mappings(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the row, and its `metadata` if there are any."""
    yield row
    if isinstance(metadata := _parsed_json(row.get("metadata")), Mapping):
        yield metadata


def _parsed_json(value: Any) -> Any:
    """Return the value, parsed if it is a JSON list or object: tables such as CSV have no nested columns."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _texts(mapping: Mapping[str, Any], name: str) -> list[str]:
    """Return the texts in the list under `name`; whole numbers become texts. Raises ValueError if it is not
    such a list."""
    values = _parsed_json(mapping.get(name))
    if values is None:
        return []
    is_usable = isinstance(values, list | tuple) and all(
        isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip()
        for value in values
    )
    if not is_usable:
        raise ValueError(f"`{name}` must be a list of texts")
    return [str(value) for value in values]


def _titles_of_facts(facts: Any) -> list[str]:
    """Return the titles in `supporting_facts`. Raises ValueError if they are malformed."""
    if isinstance(facts, Mapping):  # the copies on the Hub have a list for each column
        facts = facts.get("title") or []
        facts = [[title] for title in facts] if isinstance(facts, list) else facts
    if not facts:
        return []
    is_usable = isinstance(facts, list) and all(
        isinstance(fact, list | tuple) and fact and isinstance(fact[0], str) and fact[0].strip()
        for fact in facts
    )
    if not is_usable:
        raise ValueError("`supporting_facts` must be a list of [title, sentence]")
    return [fact[0] for fact in facts]


def _titles_of_paragraphs(paragraphs: Any) -> list[str]:
    """Return the titles of the paragraphs that support the answer."""
    return [
        paragraph["title"]
        for paragraph in (paragraphs if isinstance(paragraphs, list) else ())
        if isinstance(paragraph, Mapping)
        and paragraph.get("is_supporting") is True
        and isinstance(paragraph.get("title"), str)
        and paragraph["title"].strip()
    ]
